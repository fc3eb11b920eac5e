"""Evaluation and drawing of a soak."""

import argparse
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from tests.scale.soak import FLOOR, MINUTE, Sample, flat, seconds_of, theil_sen, undisturbed
from tests.scale.svgplot import Panel, chart, ticks


def samples(resident: list[float]) -> list[Sample]:
    return [Sample(5.0 * at, 1.0, value, 100, 4, 7, 3.3, 0.0) for at, value in enumerate(resident)]


def test_the_slope_of_a_line_is_the_line() -> None:
    growth, scatter = theil_sen([0, 1, 2, 3, 4], [10, 12, 14, 16, 18])
    assert (growth, scatter) == (8.0, 0.0)


def test_a_few_wild_samples_change_nothing() -> None:
    values = [100.0] * 50
    values[7] = values[30] = 900.0
    assert theil_sen(range(50), values) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("resident", "is_flat"),
    [
        pytest.param([100.0] * 60, True, id="constant"),
        pytest.param([100 + 5 * (at % 4) for at in range(60)], True, id="saw tooth"),
        pytest.param([40 + at for at in range(30)] + [70.0] * 30, True, id="grew in the first half only"),
        pytest.param([60 + at / 10 for at in range(60)], False, id="grows steadily"),
        pytest.param([60 + at / 4 + (at % 3) for at in range(60)], False, id="grows with noise"),
    ],
)
def test_flat(resident: list[float], is_flat: bool) -> None:
    growth, noise = flat("resident_mb", samples(resident))
    assert noise >= FLOOR["resident_mb"]
    assert (growth <= noise) is is_flat


def test_minutes_in_which_much_was_stolen_are_left_out() -> None:
    minutes = [(1.5, 0.0), (4.0, 9.0), (1.7, 0.4)]
    samples = [Sample(0.0, cpu, 90.0, 100, 4, 7, 3.3, stolen) for cpu, stolen in minutes for _ in range(MINUTE)]
    assert undisturbed([*samples, *samples[: MINUTE - 1]]) == pytest.approx([1.5, 1.7])


@pytest.mark.parametrize(("text", "seconds"), [("1h", 3600), ("10m", 600), ("90s", 90), ("45", 45), ("0.5h", 1800)])
def test_durations(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1m", "1d", "1 h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no duration"):
        seconds_of(text)


@given(st.floats(1e-3, 1e9))
def test_axes_reach_the_top_with_few_round_marks(top: float) -> None:
    marks = ticks(top)
    assert marks[0] == 0
    assert marks[-1] >= top * (1 - 1e-9)
    assert 2 <= len(marks) <= 7


def test_every_sample_is_in_the_chart() -> None:
    values = [1.0, 3.0, 2.0, 8.0]
    drawn = ElementTree.fromstring(
        chart("a < b", "note & more", [0, 1, 2, 3], [Panel("x", values, 4.0), Panel("y", values)])
    )
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(present(line.get("points")).split()) for line in lines] == [4, 4]
    heights = [float(point.split(",")[1]) for point in present(lines[0].get("points")).split()]
    assert heights.index(min(heights)) == 3, "the highest value is drawn highest"
    assert len([line for line in drawn.iter() if line.get("stroke-dasharray")]) == 1
