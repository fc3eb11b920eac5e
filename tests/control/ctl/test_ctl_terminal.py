"""Foreign text can neither control the terminal nor break the live view."""

from __future__ import annotations

import io
import sys
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from rich.table import Table
from rich.text import Text

from control.ctl.errors import CtlError
from control.ctl.main import cli, main
from control.ctl.pagecommands import print_top
from control.ctl.progress import TerminalProgress
from control.ctl.terminal import SafeConsole, printable
from control.ctl.views.httperrors import describe
from control.ctl.views.koordletclient import KoordletUnreachable, fetch_top
from control.ctl.views.topapp import TopApp
from koordlet.api.pages.top import Top, TopRow
from koordlet.app.version import version_line

EVIL = "a\x1b]52;c;ZWNobw==\x07\x1b[2J\x9b31m\u202eb\rc"


def control_characters(text: str) -> set[str]:
    return {char for char in text if char != "\n" and not char.isprintable() and char != "\ufffd"}


def test_printable_replaces_control_characters() -> None:
    assert printable("web-0 \N{BULLET} ü") == "web-0 \N{BULLET} ü"
    assert not control_characters(printable(EVIL))
    assert printable("a\nb") == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("renderable", [EVIL, Text(EVIL), "table"])
def test_a_console_prints_no_foreign_control_characters(renderable: Any) -> None:
    if renderable == "table":
        renderable = Table("NAME")
        renderable.add_row(Text(EVIL))
    console = SafeConsole(file=io.StringIO(), width=200, highlight=False)
    console.print(renderable, markup=False)
    assert not control_characters(console.file.getvalue())  # type: ignore[attr-defined]


def test_foreign_text_in_a_table_is_no_markup() -> None:
    """A reason may contain what looks like a closing tag, which the library would refuse."""
    table = Table("REASON")
    table.add_row("Insufficient [/x] [red]cpu")
    console = SafeConsole(file=io.StringIO(), width=200, highlight=False)
    console.print(table)
    assert "Insufficient [/x] [red]cpu" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_console_keeps_its_own_colours() -> None:
    console = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    console.print(Text("bad \x1b[2J", style="red"))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m" in written and "\x1b[2J" not in written


def top() -> Top:
    row = TopRow(kind="group", name=f"{EVIL}[/b]", id=f"x/{EVIL}[/b]", cpu=0.1)
    return Top(node=EVIL, cpus=2, cpu=1.0, memory=1.0, memory_total=2.0, window=10.0, rows=[row])


def test_top_prints_names_without_control_characters() -> None:
    console = SafeConsole(file=io.StringIO(), highlight=False)
    print_top(top(), console)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert not control_characters(written)
    assert "[/b]" in written


async def test_the_live_view_shows_names_that_look_like_markup() -> None:
    async def fetch() -> Top:
        return top()

    app = TopApp(fetch, "http://127.0.0.1:1", interval=3600)
    async with app.run_test(size=(200, 40)):
        await app.refresh_data()
        cells = [str(cell) for cell in app._table.get_row_at(0)]
        assert any("[/b]" in cell for cell in cells)
        assert not any(control_characters(cell) for cell in cells)


def test_progress_prints_no_foreign_control_characters() -> None:
    console = SafeConsole(file=io.StringIO(), highlight=False)
    progress = TerminalProgress(console)
    progress.good(EVIL)
    progress.say(EVIL)
    assert not control_characters(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize(("argv", "name"), [("/usr/bin/koordctl", "koordctl"), ("/bin/kubectl-koord", "kubectl koord")])
def test_errors_name_the_program_that_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: str, name: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CtlError("no luck")

    monkeypatch.setattr(sys, "argv", [argv, "status"])
    monkeypatch.setattr(cli, "main", fail)
    assert main() == 1
    assert capsys.readouterr().err == f"{name}: no luck\n"


def test_the_version_text_is_that_of_all_programs() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"{version_line('koordctl')}\n"


async def test_a_refused_connection_is_reported_by_its_cause() -> None:
    with pytest.raises(KoordletUnreachable) as caught:
        await fetch_top("http://127.0.0.1:1")
    assert caught.value.message == "koordlet at http://127.0.0.1:1 does not respond: Connection refused"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "no response in time"),
        (aiohttp.ServerDisconnectedError(), "it may serve HTTPS"),
        (OSError("odd"), "odd"),
        (OSError(), "OSError"),
    ],
)
def test_failed_requests_are_described(error: Exception, words: str) -> None:
    assert words in describe(error, "http://node:9316")
