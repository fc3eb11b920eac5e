"""A few kills of a small node's koordlet; `make chaos` does many over many pods."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.koordlet.process.chaos import Chaos
from tests.koordlet.process.classes import ALL
from tests.koordlet.process.fleet import Fleet
from tests.koordlet.process.scene import Scene

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

KILLS, PODS = 5, 20


@pytest.fixture
def scene(trees: Any, views: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    pods = Fleet(trees())
    scene = Scene(pods, views(pods.tree), tmp_path_factory.mktemp("cluster"))
    yield scene
    scene.close()


def test_after_every_kill_the_tree_comes_to_what_is_specified(scene: Scene) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    chaos = Chaos(scene, random.Random(seed), ALL, memory_mib=4096, say=print)
    chaos.open(PODS)
    wrong = chaos.run(KILLS)
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
