"""`koordctl down` without real parts: what is stopped, found and reported."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from control import processid
from control.ctl.node import down as downs
from control.ctl.node import processes, state
from control.ctl.node.down import Leftovers, down
from control.ctl.node.state import NodeSettings
from control.ctl.node.supervisor import Supervisor
from control.ctl.progress import TerminalProgress
from tests.waiting import wait_until

SLEEP = ("sleep", "300")


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    return tmp_path / "pins"


@pytest.fixture
def supervisor(tmp_path: Path, pins: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path / "state")
    supervisor.state_dir.mkdir()
    supervisor.settle(NodeSettings("n", bpf_pin_dir=str(pins)))
    yield supervisor
    supervisor._reap()


def test_down_without_a_node_does_nothing(tmp_path: Path, progress: TerminalProgress) -> None:
    assert not down(tmp_path / "never", progress=progress)
    assert not (tmp_path / "never").exists()


def test_parts_and_strays_are_stopped_and_files_purged(
    supervisor: Supervisor, pins: Path, progress: TerminalProgress, tmp_path: Path
) -> None:
    parts = [supervisor.start(name, SLEEP) for name in ("apiserver", "koordlet")]
    stray = supervisor.start("kubelet", ("sh", "-c", "trap '' TERM; sleep 301 & wait"))
    wait_until(lambda: any(process.argv == ("sleep", "301") for process in processes.marked(supervisor.state_dir)))
    os.kill(stray.pid, signal.SIGKILL)
    wait_until(lambda: not processid.alive(stray))
    (pins / "probe").mkdir(parents=True)
    (pins / "probe" / "map").touch()
    leftovers = down(supervisor.state_dir, purge=True, progress=progress)
    assert leftovers == Leftovers()
    assert not any(processid.alive(part) for part in parts)
    assert processes.marked(supervisor.state_dir) == []
    assert not pins.exists() and not supervisor.state_dir.exists()
    assert isinstance(progress.console.file, io.StringIO)
    output = progress.console.file.getvalue()
    assert "koordlet: stopped" in output and "kubelet: did not run" in output
    assert "1 processes, 1 pinned BPF objects removed" in output


def test_without_purge_settings_and_logs_stay(supervisor: Supervisor, progress: TerminalProgress) -> None:
    supervisor.start("apiserver", SLEEP)
    assert not down(supervisor.state_dir, progress=progress)
    left = state.load(supervisor.state_dir)
    assert left.parts == {} and left.settings is not None
    assert supervisor.log_path("apiserver").exists()


def test_leftovers_are_counted_and_named(supervisor: Supervisor, pins: Path) -> None:
    process = supervisor.start("kubelet", SLEEP)
    (pins / "probe").mkdir(parents=True)
    leftovers = downs.leftovers(supervisor.state_dir, [], supervisor.state.settings, purged=True)
    assert bool(leftovers)
    lines = leftovers.lines()
    assert lines[0] == f"processes: 1 left: pid {process.pid} (sleep 300)"
    assert lines[1] == "cgroups: none"
    assert lines[3] == f"pins: 1 left: {pins / 'probe'}"
    assert lines[4] == f"files: 1 left: {supervisor.state_dir}"
    supervisor.stop("kubelet", 60)


def test_an_empty_pin_folder_is_a_leftover_too(supervisor: Supervisor, pins: Path) -> None:
    pins.mkdir()
    leftovers = downs.leftovers(supervisor.state_dir, [], supervisor.state.settings, purged=False)
    assert leftovers.pins == [str(pins)]


@pytest.mark.kernel
def test_cgroups_of_a_killed_kubelet_are_removed_with_their_processes(
    supervisor: Supervisor, progress: TerminalProgress, tmp_path: Path
) -> None:
    tree = downs._tree()
    assert tree is not None, "no cgroups here"
    top = f"koordctl-test-{os.getpid()}"
    groups = [top, f"{top}/burstable"]
    kubelet = supervisor.state_dir / "kubelet"
    kubelet.mkdir()
    (kubelet / "cgroups.json").write_text(f'{{"made": ["{groups[0]}", "{groups[1]}"]}}')
    try:
        tree.create(f"{groups[1]}/podx")
        inside = supervisor.start("a container", ("sleep", "301"))
        for procs in tree.procs_files(f"{groups[1]}/podx"):
            Path(procs).write_text(str(inside.pid))
        assert not down(supervisor.state_dir, progress=progress)
        assert not tree.exists(top)
        assert not processid.alive(inside)
        assert not (kubelet / "cgroups.json").exists()
    finally:
        downs.remove_cgroups(groups)
