"""Fixtures for tests that drive the real kernel: own cgroups on v1, hybrid and v2, and processes that load them.

Everything made here is in ``koord-test-<pid>-…`` groups of its own; it is killed by pid and removed at the end of
the test. What a run left that was itself killed goes before the first test that drives the kernel. Nothing is skipped
when the kernel or root is missing: tests marked ``kernel`` then fail.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from _pytest.mark.expression import Expression
from hypothesis import HealthCheck, settings

from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.runtimes.fixtures import _containerd as _containerd
from tests.runtimes.fixtures import _dockerd as _dockerd
from tests.runtimes.fixtures import containerd as containerd
from tests.runtimes.fixtures import cri as cri
from tests.runtimes.fixtures import dockerd as dockerd
from tests.runtimes.fixtures import new_containerd as new_containerd
from tests.runtimes.fixtures import new_dockerd as new_dockerd

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "net_cls", "perf_event", "io")
OURS = re.compile(r"koord(?:ctl)?-?(?:test|bench|process)-(\d+)(?:-|$)")
"""Names of what tests and benches make, with the pid of who made it."""
MARKERS = ("kernel", "guest", "runtime", "kubectl", "e2e", "kubernetes", "timing")
"""A test has them only if its own file names them (tests/repository/test_markers.py)."""
PARTS = {"control": Path(__file__).parent / "control", "guest": Path(__file__).parent / "guest"}
BEGAN = time.time()
_serial = itertools.count()
# Times depend on what else the machine does.
settings.register_profile("koord", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("koord")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=(*PARTS, "rest"), help="collect this folder of tests/, or all others")


gc.disable()  # until all tests are collected: collections of the growing heap took half of that time


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # what was collected lives to the end
    gc.set_threshold(10_000, 20, 50)  # with Python's own thresholds, a tenth of the CPU time were collections


def in_part(path: Path, part: str) -> bool:
    if part == "rest":
        return not any(in_part(path, other) for other in PARTS)
    return PARTS[part] in (path, *path.parents)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing the modules of other parts, or of tests without -m's markers, would take most of a group's start."""
    part = config.getoption("--part")
    is_above = part in PARTS and collection_path in PARTS[part].parents
    if part and not is_above and not in_part(collection_path, part):
        return True
    is_module = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_module and not may_select(config.option.markexpr, collection_path) else None


def may_select(expression: str, path: Path) -> bool:
    """Whether a test with some of the markers that the file names could match the expression of -m."""
    if not expression or not set(re.findall(r"\w+", expression)) <= {*MARKERS, "and", "or", "not"}:
        return True
    named = sorted(set(re.findall(rf"\bmark\.({'|'.join(MARKERS)})\b", path.read_text())))
    subsets = (itertools.combinations(named, size) for size in range(len(named) + 1))
    return any(_matches(expression, chosen) for chosen in itertools.chain.from_iterable(subsets))


@functools.cache
def _matches(expression: str, markers: tuple[str, ...]) -> bool:
    return Expression.compile(expression).evaluate(lambda name, /, **_: name in markers)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test marked `timing` shares its CPUs with other work: one failure may be that work's, two in a row may not."""
    if part := config.getoption("--part"):
        config.hook.pytest_deselected(items=[item for item in items if not in_part(item.path, part)])
        items[:] = [item for item in items if in_part(item.path, part)]  # a file in the arguments is never ignored
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], AbstractEventLoop]]:
    """The event loop of the components (`koordlet.app.runner.run`): other classes of transports than asyncio's."""
    return {"uvloop": uvloop.new_event_loop}


class ChildCgroup:
    """One cgroup of ours, in every hierarchy that matters; ``dir`` is its name relative to each root."""

    def __init__(self, host: Host, name: str) -> None:
        self.dir = name
        self._facts = host.facts
        mounts = host.facts.cgroup_mounts
        roots = {mounts.v1[controller] for controller in CONTROLLERS if controller in mounts.v1}
        if mounts.unified is not None:
            roots.add(mounts.unified)
        assert roots, "no cgroup hierarchy is mounted"
        self.paths = [root / name for root in sorted(roots)]
        if mounts.version == 2:
            self._enable(self.paths[0])
        self.make()

    def make(self) -> None:
        for path in self.paths:
            path.mkdir()
            if (path / "cpuset.mems").exists() and self._facts.cgroup_version == 1:
                for file in ("cpuset.cpus", "cpuset.mems"):  # v1 refuses tasks while these are empty
                    (path / file).write_text((path.parent / file).read_text())

    def path(self, controller: str) -> Path:
        root = self._facts.cgroup_mounts.hierarchy(controller)
        assert root is not None, f"controller {controller} is not mounted"
        return root / self.dir

    def write(self, controller: str, file: str, value: str | int) -> None:
        (self.path(controller) / file).write_text(str(value))

    def add(self, pid: int) -> None:
        for path in self.paths:
            (path / "cgroup.procs").write_text(str(pid))

    def child(self, name: str) -> ChildCgroup:
        """A group below; remove it before this one (the fixture does)."""
        below = ChildCgroup.__new__(ChildCgroup)
        below._facts = self._facts
        below.dir = f"{self.dir}/{name}"
        if self._facts.cgroup_version == 2:
            self._enable(self.paths[0] / name)
        below.paths = [path / name for path in self.paths]
        below.make()
        return below

    def remove(self) -> None:
        """Every process inside must be dead already; the kernel takes a moment to let go of it."""
        for path in self.paths:
            for directory in sorted(path.rglob("*/"), reverse=True) if path.exists() else []:
                _rmdir(directory)
            _rmdir(path)

    @staticmethod
    def _enable(path: Path) -> None:
        """Give *path*'s parent every controller that its own parent offers (v2)."""
        parent = path.parent
        offered = (parent / "cgroup.controllers").read_text().split()
        enabled = " ".join(f"+{controller}" for controller in offered if controller in CONTROLLERS)
        (parent / "cgroup.subtree_control").write_text(enabled)


def _rmdir(path: Path) -> None:
    for _ in range(100):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"{path} cannot be removed: {(path / 'cgroup.procs').read_text()!r}")


@pytest.fixture(scope="session")
def kernel_host() -> Host:
    """The machine itself."""
    host = Host(Roots.host())
    assert host.facts.root, "kernel tests need root"
    mounts = host.facts.cgroup_mounts
    clean_up_after_the_dead([*mounts.v1.values(), *([mounts.unified] if mounts.unified is not None else [])])
    return host


def clean_up_after_the_dead(roots: Iterable[Path], netns: Path = Path("/run/netns")) -> None:
    """Remove groups and network namespaces of tests and benches whose process is gone; a living one's stay.

    Their processes would load the machine that is measured here, and pids come round again, and with them names.
    """
    groups = [path for root in sorted(set(roots)) for path in root.iterdir() if _of_the_dead(path)]
    for path in groups:
        for procs in path.rglob("cgroup.procs"):
            for pid in procs.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    for path in groups:
        for directory in sorted(path.rglob("*/"), reverse=True):
            _rmdir(directory)
        _rmdir(path)
    for path in netns.iterdir() if netns.is_dir() else []:
        if _of_the_dead(path):
            subprocess.run(["ip", "netns", "del", path.name], check=True)


def _of_the_dead(path: Path) -> bool:
    """Is it named after a process that is gone, or after us but older than we are?"""
    match = OURS.match(path.name)
    if match is None:
        return False
    if int(match[1]) == os.getpid():
        return path.stat().st_ctime < BEGAN
    return not Path(f"/proc/{match[1]}").exists()


@pytest.fixture
def kernel_fs(kernel_host: Host) -> Iterator[CgroupFS]:
    fs = CgroupFS(kernel_host)
    yield fs
    fs.cache.close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``spawn(argv, cgroup)``: a process that is in *cgroup* before it does anything; ended with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(argv: list[str], cgroup: ChildCgroup | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["sh", "-c", 'read go; exec "$@"', "sh", *argv],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        running.append(process)
        if cgroup is not None:
            cgroup.add(process.pid)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        return process

    yield start
    for process in running:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill by pid, reap, close the pipes."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture
def cgroup_child(
    kernel_host: Host, spawn: Callable[..., subprocess.Popen[str]]
) -> Iterator[Callable[..., ChildCgroup]]:
    """``cgroup_child("name")`` makes an own cgroup; *spawn* is asked for so that processes end after the test but
    groups are removed only when they are empty."""
    cgroups: list[ChildCgroup] = []

    def make(name: str = "") -> ChildCgroup:
        child = ChildCgroup(kernel_host, f"koord-test-{os.getpid()}-{next(_serial)}{name and '-' + name}")
        cgroups.append(child)
        return child

    yield make
    for child in cgroups:
        for path in child.paths:
            for procs in [*path.rglob("cgroup.procs")]:
                for pid in procs.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
    for child in cgroups:
        child.remove()


@pytest.fixture
def burner(spawn: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """``burner(cgroup)``: a process that uses one CPU until it is killed."""
    return lambda cgroup=None: spawn(["sh", "-c", "while :; do :; done"], cgroup)


@pytest.fixture
def toucher(spawn: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """``toucher(cgroup, mebibytes)``: a process that has touched that much anonymous memory when it returns."""

    def start(cgroup: ChildCgroup | None, mebibytes: int) -> subprocess.Popen[str]:
        code = (
            f"import time; b = bytearray({mebibytes} << 20); b[::4096] = b'x' * len(b[::4096]);"
            "print('ready', flush=True); time.sleep(600)"
        )
        process = spawn([sys.executable, "-S", "-c", code], cgroup)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    return start
