"""Fixtures that start koordlet processes on the real kernel, with pods of their own and a private view."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process.koordletprocess import Koordlet
from tests.koordlet.process.podtree import PodTree
from tests.koordlet.process.view import View


@pytest.fixture(scope="session")
def own_host() -> Host:
    host = Host(Roots.host())
    assert host.facts.root, "these tests need root"
    return host


@pytest.fixture(scope="session")
def cpus() -> tuple[int, int]:
    """Two CPUs to pin to; the same one twice on a machine with one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


@pytest.fixture(scope="module")
def trees(own_host: Host) -> Iterator[Callable[..., PodTree]]:
    created: list[PodTree] = []

    def make(driver: CgroupDriver = CgroupDriver.CGROUPFS, weight: int = 1, *, disks: bool = False) -> PodTree:
        created.append(PodTree(own_host, driver, weight, disks=disks))
        return created[-1]

    yield make
    for tree in created:
        tree.remove()


@pytest.fixture(scope="module")
def views(trees: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., View]]:
    created: list[View] = []

    def make(tree: PodTree, **how: Any) -> View:
        created.append(View(tree, tmp_path_factory.mktemp("view"), **how))
        return created[-1]

    yield make
    for view in created:
        view.close()


@pytest.fixture(scope="module")
def koordlets(views: Any) -> Iterator[Callable[..., Koordlet]]:
    """Start a koordlet; it is killed at the end of the module."""
    started: list[Koordlet] = []

    def start(view: View, *flags: str, **how: Any) -> Koordlet:
        started.append(Koordlet(view, *flags, **how))
        return started[-1]

    yield start
    for koordlet in started:
        koordlet.kill()
