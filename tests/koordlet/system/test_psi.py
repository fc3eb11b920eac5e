import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.errors import MalformedFile
from koordlet.system.proc.psi import FIGURES, Pressure, PressureLine, figures, parse_pressure
from tests.present import present

LINE = "avg10=0.12 avg60=1.00 avg300=99.99 total=18446744073709"
PARSED = PressureLine(0.12, 1.0, 99.99, 18446744073709)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"some {LINE}\nfull {LINE}\n", Pressure(PARSED, PARSED), id="both"),
        pytest.param(f"some {LINE}\nfull {LINE}", Pressure(PARSED, PARSED), id="no-final-newline"),
        pytest.param(f"some {LINE}", Pressure(PARSED, None), id="cpu-before-5.13"),
    ],
)
def test_pressure_is_parsed(text: str, expected: Pressure) -> None:
    assert parse_pressure(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(f"full {LINE}", id="no-some"),
        pytest.param(f"some {LINE}\nother {LINE}", id="other-line"),
        pytest.param("some avg10=x avg60=1 avg300=1 total=1", id="bad-number"),
        pytest.param("some avg10=1.2.3 avg60=1 avg300=1 total=1", id="two-dots"),
        pytest.param("some avg10=1 avg60=1 avg300=1", id="no-total"),
        pytest.param("some avg10=1 avg60=1 avg300=1 total=1.5", id="fractional-total"),
        pytest.param(f"some {LINE}\n\n", id="blank-line"),
    ],
)
def test_malformed_content_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(MalformedFile, match=r"a/cpu\.pressure"):
        parse_pressure(text, "a/cpu.pressure")
    with pytest.raises(ValueError):
        figures(text.encode())


NUMBER = st.decimals(0, 100, places=2)


@given(st.lists(NUMBER, min_size=6, max_size=6), st.integers(0, 2**63), st.none() | st.integers(0, 2**63))
def test_every_line_that_the_kernel_prints_is_parsed(numbers: list[Decimal], some: int, full: int | None) -> None:
    form = "{} avg10={} avg60={} avg300={} total={}\n"
    text = form.format("some", *numbers[:3], some)
    if full is not None:
        text += form.format("full", *numbers[3:], full)
    pressure = parse_pressure(text)
    assert pressure.some == PressureLine(*map(float, numbers[:3]), some)  # type: ignore[arg-type, call-arg]
    assert pressure.full == (None if full is None else PressureLine(*map(float, numbers[3:]), full))  # type: ignore[arg-type, call-arg]
    values = dict(zip(FIGURES, figures(text.encode()), strict=True))
    assert (values["some_avg10"], values["some_total"]) == (pressure.some.avg10, float(some))
    if full is None:
        assert math.isnan(values["full_avg10"])
        assert math.isnan(values["full_total"])
    else:
        assert (values["full_avg300"], values["full_total"]) == (present(pressure.full).avg300, float(full))
