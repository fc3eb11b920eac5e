"""Test machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.devicedaemon.machine import Machine


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    machines: list[Machine] = []

    def make(*, chroot: bool = False) -> Machine:
        machines.append(Machine(tmp_path / f"machine{len(machines)}", chroot=chroot))
        return machines[-1]

    yield make
    for machine in machines:
        machine.close()


@pytest.fixture
def machine(machines: Callable[..., Machine]) -> Machine:
    return machines()
