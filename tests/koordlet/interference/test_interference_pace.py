"""How often is judged: every other time while all is calm or judging is dear, else every time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from koordlet.interference.assembly import DEAR, Interference
from koordlet.interference.gather import NOTICED
from koordlet.prometheus import Registries


class Advisor:
    """Counts how often it was asked for the picture; there is none."""

    def __init__(self) -> None:
        self.unhurried, self.asked = False, 0
        self.latency_window = SimpleNamespace(latest=None)

    @property
    def picture(self) -> None:
        self.asked += 1


@pytest.fixture
def layer() -> tuple[Interference, Any]:
    advisor: Any = Advisor()
    return Interference(advisor, Registries(), evidence={}, clock=lambda: 0.0, wall=lambda: 0.0), advisor


def asked(layer: tuple[Interference, Any], steps: int = 6) -> int:
    made, advisor = layer
    made.step()
    before = advisor.asked
    for _ in range(steps):
        made.step()
    return int(advisor.asked - before)


def test_every_other_time_is_enough_while_all_is_calm(layer):
    assert asked(layer) == 3
    assert layer[1].unhurried


def test_nothing_new_is_left_unjudged(layer):
    made, advisor = layer
    made.step()
    for number in range(1, 5):
        advisor.latency_window.latest = object()
        made.step()
        assert advisor.asked == 1 + number


def test_a_figure_half_way_to_trouble_ends_the_calm(layer):
    layer[0].watch.detector.scores = np.full((1, 5, 2), NOTICED)
    assert asked(layer) == 6
    assert not layer[1].unhurried


def test_a_loss_worth_asking_about_ends_the_calm(layer):
    layer[0]._gatherer.noticed = True
    assert asked(layer) == 6
    layer[0]._gatherer.noticed = False
    assert asked(layer) == 3


@pytest.mark.parametrize(("took", "times"), [(DEAR / 2, 6), (2 * DEAR, 3)], ids=["cheap", "dear"])
def test_what_is_dear_comes_less_often_whoever_is_in_trouble(took: float, times: int) -> None:
    advisor: Any = Advisor()
    readings = iter(np.arange(0.0, 1000.0, took))
    made = Interference(
        advisor, Registries(), evidence={}, clock=lambda: 0.0, wall=lambda: 0.0, cpu_clock=lambda: float(next(readings))
    )
    made.watch.detector.scores = np.full((1, 5, 2), NOTICED)
    assert asked((made, advisor)) == times
