import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.errors import MalformedFile
from koordlet.system.proc.psi import Pressure, PressureLine, parse_pressure

LINE = "avg10=0.12 avg60=1.00 avg300=99.99 total=18446744073709"
PARSED = PressureLine(0.12, 1.0, 99.99, 18446744073709)
NOTHING = PressureLine(0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"some {LINE}\nfull {LINE}\n", Pressure(PARSED, PARSED, True), id="both"),
        pytest.param(f"some {LINE}", Pressure(PARSED, NOTHING, False), id="old-cpu"),
    ],
)
def test_parse(text, expected):
    assert parse_pressure(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(f"full {LINE}", id="no-some"),
        pytest.param(f"some {LINE}\nother {LINE}", id="other-line"),
        pytest.param("some avg10=x avg60=1 avg300=1 total=1", id="bad-number"),
        pytest.param("some avg10=1 avg60=1 avg300=1", id="no-total"),
        pytest.param("some avg10=1 avg60=1 avg300=1 total=1.5", id="fractional-total"),
        pytest.param(f"some {LINE}\n\n", id="blank-line"),
    ],
)
def test_malformed_names_the_file(text):
    with pytest.raises(MalformedFile, match=r"a/cpu\.pressure"):
        parse_pressure(text, "a/cpu.pressure")


@given(st.lists(st.decimals(0, 100, places=2), min_size=6, max_size=6), st.integers(0, 2**63), st.integers(0, 2**63))
def test_whatever_the_kernel_prints(numbers, some, full):
    a, b = numbers[:3], numbers[3:]
    form = "{} avg10={} avg60={} avg300={} total={}\n"
    pressure = parse_pressure(form.format("some", *a, some) + form.format("full", *b, full))
    assert pressure.some == PressureLine(*map(float, a), some)
    assert pressure.full == PressureLine(*map(float, b), full)
