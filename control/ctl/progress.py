"""Progress on the terminal: a spinner during a step, one line at its end. Plain lines when the output is no
terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from control.ctl.terminal import SafeConsole


class ProgressStep:
    """One running step. `note` shows what it waits for, `done` sets the text of its final line."""

    def __init__(self, title: str, status: Status | None) -> None:
        self.title = title
        self.result = ""
        self._status = status

    def note(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{escape(self.title)}: {escape(text)}")

    def done(self, text: str) -> None:
        self.result = text


class TerminalProgress:
    """Prints steps to a console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or SafeConsole(highlight=False)

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Run a step: prints ✓ with its result and duration, or ✗ when it raises."""
        began = time.monotonic()
        status = self.console.status(escape(title)) if self.console.is_terminal else None
        current = ProgressStep(title, status)
        if status is not None:
            status.start()
        try:
            yield current
        except BaseException:
            if status is not None:
                status.stop()
            self.bad(f"{title} [dim]({time.monotonic() - began:.1f} s)[/]", markup=True)
            raise
        if status is not None:
            status.stop()
        text = f"{escape(title)}: {escape(current.result)}" if current.result else escape(title)
        self.good(f"{text} [dim]({time.monotonic() - began:.1f} s)[/]", markup=True)

    def good(self, text: str, *, markup: bool = False) -> None:
        self.console.print(f"[green]✓[/] {text if markup else escape(text)}", soft_wrap=True, markup=True)

    def bad(self, text: str, *, markup: bool = False) -> None:
        self.console.print(f"[red]✗[/] {text if markup else escape(text)}", soft_wrap=True, markup=True)

    def say(self, text: str = "") -> None:
        self.console.print(text, markup=False, soft_wrap=True)
