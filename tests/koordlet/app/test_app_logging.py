"""Structured log lines, as text and as JSON."""

import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from io import StringIO

import pytest

from koordlet.app.flags import read
from koordlet.app.logging import MAX_FIELD_CHARS, LoggingOptions, OnceKeys, begin, describe, get_logger, setup


@pytest.fixture
def lines() -> Iterator[Callable[..., StringIO]]:
    """setup() on a stream of ours; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def sent(verbosity: int = 0, json: bool = False) -> StringIO:
        stream = io.StringIO()
        setup(verbosity, json=json, stream=stream)
        return stream

    yield sent
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


def test_text_line_has_klog_form(lines: Callable[..., StringIO]) -> None:
    out = lines()
    get_logger("t").info("Evicting pod", pod="default/web-0", used=3, dry=True)
    assert re.fullmatch(
        r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_app_logging\.py:\d+\] "
        r'"Evicting pod" pod="default/web-0" used=3 dry=true\n',
        out.getvalue(),
    )


def test_newlines_and_quotes_stay_on_one_line(lines: Callable[..., StringIO]) -> None:
    out = lines()
    get_logger("t").warning("odd", text='a\n"b"')
    assert out.getvalue().count("\n") == 1
    assert r'text="a\n\"b\""' in out.getvalue()


def test_json_line_keeps_its_own_keys(lines: Callable[..., StringIO]) -> None:
    out = lines(json=True)
    get_logger("t").error("bad", node="n1", msg="hidden?", err=ValueError("x"), path=io)
    line = json.loads(out.getvalue())
    assert line["msg"] == "bad" and line["_msg"] == "hidden?" and line["level"] == "error"
    assert line["node"] == "n1" and line["err"] == "ValueError: x"


def test_exception_adds_a_traceback(lines: Callable[..., StringIO]) -> None:
    out = lines()
    try:
        raise KeyError("k")
    except KeyError as error:
        get_logger("t").exception("failed", err=error)
    assert "Traceback" in out.getvalue() and "KeyError" in out.getvalue()


def test_verbosity(lines: Callable[..., StringIO]) -> None:
    out = lines(3)
    get_logger("t").debug("detail")
    assert out.getvalue() == ""
    out = lines(4)
    get_logger("t").debug("detail")
    assert "detail" in out.getvalue()


def test_once_logs_once_per_process(lines: Callable[..., StringIO]) -> None:
    out = lines()
    for _ in range(3):
        get_logger("t.once").once("psi", "no PSI")
    assert out.getvalue().count("no PSI") == 1


def test_describe_follows_causes() -> None:
    try:
        try:
            raise OSError("disk")
        except OSError as error:
            raise RuntimeError("save") from error
    except RuntimeError as error:
        assert describe(error) == "RuntimeError: save; caused by OSError: disk"


@pytest.mark.usefixtures("lines")
def test_flags_without_effect_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    begin(read(LoggingOptions, ["--log-dir=/var/log", "--v=4", "--logtostderr"]))
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and output.endswith(
        '"Flag without effect" flag="--log-dir" reason="see logtostderr"\n'
    )
    assert logging.getLogger().level == logging.DEBUG


@pytest.mark.usefixtures("lines")
def test_flags_select_the_log_format(capsys: pytest.CaptureFixture[str]) -> None:
    begin(read(LoggingOptions, ["--logging-format=json", "--one-output"]))
    assert json.loads(capsys.readouterr().err)["flag"] == "--one-output"


def test_once_keeps_neither_keys_nor_more_than_its_number_of_them() -> None:
    once = OnceKeys(keys=100, per_minute=10_000)
    assert all(once.is_new(f"{number}{'x' * 240_000}") for number in range(300))
    assert len(once) == 100
    held = sum(map(sys.getsizeof, once._logged_at))
    assert held < 100 * 100, "digests, not the texts"


def test_once_forgets_the_least_recently_used_key_and_old_keys() -> None:
    now = [0.0]
    once = OnceKeys(keys=2, expires=60.0, clock=lambda: now[0])
    assert once.is_new("a") and once.is_new("b")
    assert not once.is_new("a")  # used
    assert once.is_new("c")  # b is dropped
    assert not once.is_new("a") and once.is_new("b")
    now[0] = 61.0
    assert once.is_new("b"), "it is said again while the cause lasts"


def test_a_flood_of_keys_does_not_hide_a_warning_for_longer_than_a_minute() -> None:
    now = [0.0]
    once = OnceKeys(keys=4096, per_minute=5, clock=lambda: now[0])
    assert sum(once.is_new(f"flood {number}") for number in range(10_000)) == 5
    assert not once.is_new("a real warning")
    now[0] = 60.0
    assert once.is_new("a real warning")


@pytest.mark.parametrize("as_json", [False, True])
def test_foreign_text_is_cut_and_has_no_control_characters(lines: Callable[..., StringIO], as_json: bool) -> None:
    out = lines(json=as_json)
    hostile = "\x1b]52;c;AAAA\x07\x9b31m\u202e\x7f\r\n" + "x" * 240_000
    get_logger("t.hostile").warning("Annotation ignored", pod=hostile, error=ValueError(hostile))
    text = out.getvalue()
    assert len(text) < 4 * MAX_FIELD_CHARS
    assert text.removesuffix("\n").isprintable()
