"""Parts as processes: started once, identified again, stopped by identity only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from control import processid
from control.ctl.errors import CtlError
from control.ctl.node import processes, state
from control.ctl.node.state import Lock, NodeSettings, PartRecord, UpState
from control.ctl.node.supervisor import Supervisor
from control.processid import ProcessId
from tests.waiting import wait_until

PATIENCE = 60.0
"""Seconds, with room for a machine that stalls."""
SLEEP = ("sleep", "300")
DEAF = (
    sys.executable,
    "-S",
    "-c",
    "import signal,time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)",
)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path)
    yield supervisor
    for process in processes.marked(tmp_path):
        processes.send(process.id, signal.SIGKILL)
        processes.wait_gone(process.id, PATIENCE)
    supervisor.running("")  # reaps
    for child in list(supervisor._children.values()):
        child.wait()


def test_a_part_is_started_once_and_outlives_the_supervisor(supervisor: Supervisor, tmp_path: Path) -> None:
    first = supervisor.start("a", SLEEP)
    assert supervisor.start("a", SLEEP) == first
    later = Supervisor(tmp_path)
    assert later.running("a") == first
    assert os.getsid(first.pid) == first.pid


def test_stop_ends_a_part_and_removes_its_record(supervisor: Supervisor, tmp_path: Path) -> None:
    process = supervisor.start("a", SLEEP)
    assert supervisor.stop("a", PATIENCE) is True
    assert not processid.alive(process)
    assert supervisor.stop("a", PATIENCE) is None
    assert state.load(tmp_path).parts == {}


def test_a_part_that_ignores_sigterm_is_killed_and_reported(supervisor: Supervisor) -> None:
    process = supervisor.start("a", DEAF)
    wait_until(lambda: "\nready\n" in supervisor.log_path("a").read_text())
    assert supervisor.stop("a", 0.05) is False
    assert not processid.alive(process)


def test_a_killed_part_is_not_running_and_can_be_restarted(supervisor: Supervisor) -> None:
    process = supervisor.start("a", SLEEP)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: supervisor.running("a") is None)
    again = supervisor.start("a", SLEEP)
    assert again != process
    assert supervisor.running("a") == again


def test_a_process_with_a_reused_pid_is_not_touched(tmp_path: Path) -> None:
    bystander = subprocess.Popen(SLEEP)
    try:
        me = processid.identify(bystander.pid)
        assert me is not None
        old = PartRecord(ProcessId(me.pid, me.starttime - 1), SLEEP, "", 0.0)
        state.save(tmp_path, UpState(parts={"a": old}, boot_id=processid.boot_id()))
        supervisor = Supervisor(tmp_path)
        assert supervisor.running("a") is None
        assert supervisor.stop("a", 1) is None
        assert not processes.send(old.process, signal.SIGKILL)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_an_unrecorded_start_is_identified_by_its_mark(supervisor: Supervisor, tmp_path: Path) -> None:
    process = supervisor.start("a", SLEEP)
    state.save(tmp_path, UpState(starting={"a": SLEEP}, boot_id=processid.boot_id()))  # as after a kill -9 of koordctl
    later = Supervisor(tmp_path)
    assert later.running("a") == process
    assert state.load(tmp_path).parts["a"].process == process
    assert state.load(tmp_path).starting == {}


def test_a_child_of_a_part_is_not_mistaken_for_it(supervisor: Supervisor, tmp_path: Path) -> None:
    shell = ("sh", "-c", "setsid sleep 300 & wait")
    process = supervisor.start("a", shell)
    wait_until(
        lambda: SLEEP in [part.argv for part in processes.marked(tmp_path)]
    )  # not the forked process before exec
    os.kill(process.pid, signal.SIGKILL)
    state.save(tmp_path, UpState(starting={"a": shell}, boot_id=processid.boot_id()))
    wait_until(lambda: Supervisor(tmp_path).running("a") is None)
    assert [part.argv for part in processes.marked(tmp_path)] == [SLEEP]


def test_records_of_an_earlier_boot_are_dropped(tmp_path: Path) -> None:
    me = processid.identify(os.getpid())
    assert me is not None
    state.save(
        tmp_path, UpState(settings=NodeSettings("n"), parts={"a": PartRecord(me, (), "", 0.0)}, boot_id="another")
    )
    supervisor = Supervisor(tmp_path)
    assert supervisor.running("a") is None
    assert supervisor.state.settings == NodeSettings("n")


def test_a_command_that_does_not_exist(supervisor: Supervisor) -> None:
    with pytest.raises(CtlError, match=r"cannot start a: /no/such: No such file"):
        supervisor.start("a", ["/no/such"])
    assert supervisor.state.starting == {}


def test_the_tail_shows_the_latest_start_only(supervisor: Supervisor) -> None:
    for word in ("first", "second"):
        process = supervisor.start("a", ["sh", "-c", f"echo {word} >&2; sleep 300"])
        wait_until(lambda word=word: f"\n{word}\n" in supervisor.log_path("a").read_text())  # type: ignore[misc]
        supervisor.stop("a", PATIENCE)
        assert not processid.alive(process)
    assert supervisor.tail("a").splitlines()[-1].strip() == "second"
    assert "first" not in supervisor.tail("a")


def test_usage_increases_and_ends_with_the_process(supervisor: Supervisor) -> None:
    process = supervisor.start("a", SLEEP)

    def counts() -> bool:
        used = processes.usage(process)
        assert used is not None and used.uptime >= 0
        return used.rss > 0  # empty right after exec

    wait_until(counts)
    supervisor.stop("a", PATIENCE)
    assert processes.usage(process) is None


def test_a_damaged_state_file_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / state.STATE_FILE).write_text('{"parts": 3}')
    with pytest.raises(CtlError, match=r"state\.json is damaged: .*parts") as caught:
        state.load(tmp_path)
    assert "KOORDCTL_STATE_DIR" in caught.value.hint


def test_state_survives_a_half_written_successor(tmp_path: Path) -> None:
    state.save(tmp_path, UpState(settings=NodeSettings("n"), boot_id=processid.boot_id()))
    (tmp_path / "state.json.tmp").write_text('{"sett')
    assert state.load(tmp_path).settings == NodeSettings("n")
    state.save(tmp_path, UpState(settings=NodeSettings("m"), boot_id=processid.boot_id()))
    assert state.load(tmp_path).settings == NodeSettings("m")
    assert msgspec.json.decode((tmp_path / "state.json").read_bytes())["settings"]["node_name"] == "m"


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    with Lock(tmp_path), pytest.raises(CtlError, match=rf"another koordctl \(pid {os.getpid()}\)"), Lock(tmp_path):
        pass
    with Lock(tmp_path):
        pass
