"""Go durations read and printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.app.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds", "printed"),
    [
        ("0", 0, "0s"),
        ("90s", 90, "1m30s"),
        ("5m", 300, "5m0s"),
        ("12h", 43200, "12h0m0s"),
        ("1h30m", 5400, "1h30m0s"),
        ("1.5h", 5400, "1h30m0s"),
        (".5s", 0.5, "500ms"),
        ("1.s", 1, "1s"),
        ("-100ms", -0.1, "-100ms"),
        ("+2s", 2, "2s"),
        ("2.5s", 2.5, "2.5s"),
        ("3us", 3e-6, "3µs"),
        ("3µs", 3e-6, "3µs"),
        ("1ns", 1e-9, "1ns"),
        ("4611686018427387903ns", 4611686018.427387903, None),
    ],
)
def test_reads_and_prints(text, seconds, printed):
    assert parse_duration(text) == pytest.approx(seconds)
    if printed is not None:
        assert format_duration(parse_duration(text)) == printed


@pytest.mark.parametrize("text", ["", "-", "5", "5 s", "s", "1h30", "1d", "1..5s", "0x5s", "9999999h", "1s "])
def test_refuses(text):
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


def test_bare_number_gets_a_hint():
    with pytest.raises(ValueError, match='did you mean "30s"'):
        parse_duration("30")


@given(st.integers(min_value=-(9 * 10**12), max_value=9 * 10**12))
def test_parse_after_format_is_the_same(milliseconds):
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)
