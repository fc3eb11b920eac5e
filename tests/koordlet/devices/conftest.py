"""NVML in this process, by the tests' library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordlet.devices.nvml import Nvml
from koordlet.system.roots import Roots
from tests import nvidia
from tests.koordlet.roots import roots_under

FIRST, SECOND = "0000:1a:00.0", "0000:c1:00.0"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = nvidia.build(tmp_path_factory.mktemp("nvml"))
    nvidia.load(built)
    return built


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nvidia.Machine]:
    """Two GPUs on two NUMA nodes."""
    machine = nvidia.Machine(
        tmp_path,
        [nvidia.Gpu(FIRST, "GPU-first", 0), nvidia.Gpu(SECOND, "GPU-second", 1, numa_node=1)],
    )
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    machine.tell()
    yield machine
    machine.hangs.clear()  # a thread may still be inside a call
    machine.tell()


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return roots_under(tmp_path)


@pytest.fixture
def connect(machine: nvidia.Machine) -> Iterator[Callable[[], Nvml]]:
    """Opens sessions, which are closed at the end."""
    opened: list[Nvml] = []

    def open_one() -> Nvml:
        opened.append(Nvml())
        return opened[-1]

    yield open_one
    machine.errors.clear()
    machine.hangs.clear()
    machine.tell()
    for session in opened:
        session.close()
