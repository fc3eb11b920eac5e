"""Verdicts about figures, including `unclear`."""

from __future__ import annotations

import random

import pytest

from tests.scale.bench_proxy_docker import PART, Took, figures
from tests.scale.figures import Figure


@pytest.mark.parametrize(
    ("value", "budget", "at_least", "spread", "verdict"),
    [
        pytest.param(9.0, None, False, 5.0, "ok", id="nothing-promised"),
        pytest.param(1.0, 1.0, False, 0.0, "ok", id="at-the-budget"),
        pytest.param(1.1, 1.0, False, 0.0, "over", id="above"),
        pytest.param(1.1, 1.0, True, 0.0, "ok", id="at-least"),
        pytest.param(0.9, 1.0, True, 0.0, "over", id="too-little"),
        pytest.param(0.9, 1.0, False, 0.2, "unclear", id="below-by-less-than-the-spread"),
        pytest.param(1.1, 1.0, False, 0.2, "unclear", id="above-by-less-than-the-spread"),
        pytest.param(0.7, 1.0, False, 0.2, "ok", id="clearly-below"),
        pytest.param(1.3, 1.0, False, 0.2, "over", id="clearly-above"),
    ],
)
def test_verdicts(value: float, budget: float | None, at_least: bool, spread: float, verdict: str) -> None:
    figure = Figure("one", value, "ms", budget, at_least, spread)
    assert figure.verdict == verdict and figure.ok is (verdict == "ok")


def ways(noise: float, added: float) -> list[Took]:
    """Direct, direct again, through a relay that adds nothing, through a proxy that adds `added`; dockerd takes 10."""
    rng = random.Random(1)
    durations = [Took(), Took(), Took(), Took()]
    for _ in range(3 * PART):
        for way, more in zip(durations, (0.0, 0.0, 0.0, added), strict=True):
            own = 1.0 + more + rng.random() * noise
            way.beside.append(own)
            way.whole.append(own + 10.0)
    return durations


def verdicts(noise: float, added: float) -> dict[str, str]:
    return {figure.name: figure.verdict for figure in figures("x", ways(noise, added), 0.4, 1.0)}


def test_a_difference_larger_than_the_noise_is_reported() -> None:
    verdict_of = verdicts(0.01, 0.2)
    assert (verdict_of["x_added_p50"], verdict_of["x_added_p99"]) == ("ok", "ok")
    verdict_of = verdicts(0.01, 1.2)
    assert (verdict_of["x_added_p50"], verdict_of["x_added_p99"]) == ("over", "over")


def test_a_difference_within_the_noise_is_reported_as_unknown() -> None:
    assert verdicts(50.0, 0.4)["x_added_p50"] == "unclear"
