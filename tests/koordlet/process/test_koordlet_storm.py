"""Every component is killed and every outage happens once, over a few pods; `make chaos DURATION=30m` draws them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.koordlet.process.chaos import Chaos
from tests.koordlet.process.classes import ALL
from tests.koordlet.process.controlplane import ControlPlane
from tests.koordlet.process.fleet import Fleet
from tests.koordlet.process.outages import (
    ClockStep,
    FullDisk,
    RefusedKubelet,
    StoppedApiServer,
    small_state,
)
from tests.koordlet.process.proxiedruntime import ProxiedRuntime
from tests.koordlet.process.scene import Scene
from tests.koordlet.process.storm import API_SERVER, KOORDLET, MANAGER, PROXY, SCHEDULER, Storm
from tests.steppedclock import SteppedClock

pytestmark = [pytest.mark.kernel, pytest.mark.runtime]

PODS = 12


@pytest.fixture
def storm(trees: Any, views: Any, tmp_path: Path) -> Iterator[Storm]:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    rng, clock = random.Random(seed), SteppedClock(tmp_path)
    fleet = Fleet(trees())
    scene = Scene(fleet, views(fleet.tree), tmp_path, environ=clock.environ)
    plane = ControlPlane(scene, tmp_path)
    try:
        small_state(scene.view)
        runtime = ProxiedRuntime()
        try:
            yield Storm(Chaos(scene, rng, ALL, 4096, print), plane, runtime, clock, rng, print)
        finally:
            runtime.close()
    finally:
        plane.close()
        scene.close()


def test_nothing_is_lost_and_settings_are_right_after_every_failure(storm: Storm) -> None:
    with storm.opened(PODS):
        storm.turn([], [StoppedApiServer, ClockStep], change=True)
        storm.turn([KOORDLET, API_SERVER, MANAGER, SCHEDULER, PROXY], [FullDisk, RefusedKubelet], change=True)
    assert storm.wrong == []
    assert len(storm.turns) == 2
    assert storm.written > 0, "no client has used the API server"
