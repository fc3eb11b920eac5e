"""Xid errors: which mean a fault, of which GPU, and what ends one (spec 08 §4.7)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from koordlet.devices.health import (
    APPLICATION_XIDS,
    NOT_SUPPORTED,
    RECOVERY_SECONDS,
    RETRY_SECONDS,
    SILENT_SECONDS,
    Health,
    Xid,
    judge,
)
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.devices.nvml import XID, Event, Nvml
from tests.nvidia import Machine

FIRST, SECOND = "0000:1a:00.0", "0000:c1:00.0"
GPUS = {FIRST: GpuInfo(0, "GPU-first", 1), SECOND: GpuInfo(1, "GPU-second", 1)}
PATIENCE = 120.0


def fault(xid: int) -> DeviceFault:
    return DeviceFault(f"Xid{xid}", f"Xid error detected on device, error code: {xid}")


LOST = DeviceFault("Xid79", "failed to get device, error: GPU is lost")


@pytest.mark.parametrize(
    ("event", "lost", "expected"),
    [
        *((Event(FIRST, xid), "", {}) for xid in sorted(APPLICATION_XIDS)),
        (Event("", 31), "", {}),
        (Event(FIRST, 31), SECOND, {}),
        (Event(FIRST, 48), "", {"GPU-first": fault(48)}),
        (Event("", 94), "", {"GPU-first": fault(94), "GPU-second": fault(94)}),
        (Event(FIRST, 79), FIRST, {"GPU-first": LOST}),
        (Event(FIRST, 79), SECOND, {"GPU-first": fault(79), "GPU-second": LOST}),
        (Event("0000:09:00.0", 79), "", {}),
        (Event("", 79), FIRST, {"GPU-first": fault(79), "GPU-second": fault(79)}),
    ],
)
def test_what_an_event_means(event: Event, lost: str, expected: dict[str, DeviceFault]) -> None:
    assert judge(event, GPUS, lambda bus_id: "GPU is lost" if bus_id == lost else "") == expected


def test_programs_errors_are_those_of_the_specification() -> None:
    assert sorted(APPLICATION_XIDS) == [13, 31, 43, 45, 68, 109]


# --- the watcher


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A `Health` over the tests' library, with short slices."""

    def __init__(self, machine: Machine, nvml: Nvml, **how: bool) -> None:
        self.machine, self.nvml, self.gpus, self.clock = machine, nvml, GPUS, Clock()
        self.health = Health(self.clock, seconds=0.01, **how)
        self.seen: list[Xid] = []
        self.watch()

    def watch(self) -> None:
        self.health.watch(self.nvml, self.gpus)
        self.seen += self.health.events()

    def raise_xid(self, *events: tuple[str, int]) -> None:
        """And wait until it has been taken."""
        known = len(self.seen)
        self.machine.events += [(address, XID, number) for address, number in events]
        self.machine.tell()
        self.until(lambda: len(self.seen) >= known + len(events), "the events")
        self.turn()  # which judges what it tells of
        self.watch()

    def turn(self) -> None:
        """Until the watcher waits: what is raised from now on is taken."""
        turns = self.machine.calls("nvmlEventSetWait_v2")
        self.until(lambda: self.machine.calls("nvmlEventSetWait_v2") > turns, "a turn")

    def until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"did not come: {what}"
            time.sleep(0.005)
            self.watch()


@pytest.fixture
def watched(machine: Machine, connect: Callable[[], Nvml]):
    """Makes them; ends them before the session is given back."""
    made: list[Watched] = []

    def make(**how: bool) -> Watched:
        made.append(Watched(machine, connect(), **how))
        made[-1].until(lambda: machine.calls("nvmlEventSetWait_v2") > 0 or bool(made[-1].health.problem), "a turn")
        return made[-1]

    yield make
    machine.errors.clear()
    machine.hangs.clear()
    machine.tell()
    for one in made:
        thread = one.health._watcher
        one.health.stop()
        if thread is not None:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_sound_until_an_event(machine: Machine, watched: Callable[..., Watched]) -> None:
    one = watched()
    assert (one.health.problem, one.health.faults) == ("", {})
    one.raise_xid((FIRST, 43))
    assert (one.health.faults, one.seen) == ({}, [Xid("GPU-first", 43)])
    one.raise_xid((FIRST, 48))
    assert one.health.faults == {"GPU-first": fault(48)}
    one.raise_xid(("?", 94))
    assert one.health.faults == {"GPU-first": fault(94), "GPU-second": fault(94)}
    assert one.seen == [Xid("GPU-first", 43), Xid("GPU-first", 48), Xid("", 94)]


def test_a_device_that_is_gone_when_another_speaks(machine: Machine, watched: Callable[..., Watched]) -> None:
    one = watched()
    machine.errors["nvmlDeviceGetHandleByPciBusId_v2", SECOND] = 15
    one.raise_xid((FIRST, 79))
    assert one.health.faults == {"GPU-first": fault(79), "GPU-second": LOST}


def test_a_device_that_tells_no_events(machine: Machine, watched: Callable[..., Watched]) -> None:
    machine.errors["nvmlDeviceRegisterEvents", SECOND] = 3
    machine.tell()
    one = watched(recovery=True)
    one.until(lambda: one.health.faults == {"GPU-second": NOT_SUPPORTED}, "what can't be watched")
    one.clock.now += RECOVERY_SECONDS
    one.raise_xid((FIRST, 48))
    assert one.health.faults == {"GPU-first": fault(48), "GPU-second": NOT_SUPPORTED}


def test_a_device_that_refuses_is_tried_again(machine: Machine, watched: Callable[..., Watched]) -> None:
    machine.errors["nvmlDeviceRegisterEvents", FIRST] = 4
    machine.tell()
    one = watched()
    one.until(lambda: "GPU-first" in one.health.unwatched, "the refusal")
    assert one.health.unwatched["GPU-first"] == "nvmlDeviceRegisterEvents: Insufficient Permissions"
    machine.errors.clear()
    machine.tell()
    one.raise_xid((SECOND, 48))
    assert list(one.health.unwatched) == ["GPU-first"]
    one.clock.now += RETRY_SECONDS
    one.until(lambda: not one.health.unwatched, "another try")
    one.raise_xid((FIRST, 48))
    assert one.health.faults == {"GPU-first": fault(48), "GPU-second": fault(48)}


def test_a_device_that_was_away_is_registered_anew(machine: Machine, watched: Callable[..., Watched]) -> None:
    """Unbound from its driver and bound again, as for a reset."""
    one = watched()
    known = machine.calls("nvmlDeviceRegisterEvents")
    one.gpus = {SECOND: GPUS[SECOND]}
    one.watch()
    one.turn()
    one.turn()  # the first may have begun before
    assert machine.calls("nvmlDeviceRegisterEvents") == known
    one.gpus = GPUS
    one.until(lambda: machine.calls("nvmlDeviceRegisterEvents") == known + 1, "the other one's")
    one.turn()
    one.raise_xid((FIRST, 48))
    assert one.health.faults == {"GPU-first": fault(48)}


def test_without_an_event_set_nobody_knows(machine: Machine, watched: Callable[..., Watched]) -> None:
    machine.errors["nvmlEventSetCreate", "-"] = 999
    machine.tell()
    one = watched()
    assert one.health.problem == "nvmlEventSetCreate: Unknown Error"
    machine.errors.clear()
    machine.tell()
    one.watch()
    assert one.health.problem
    one.clock.now += RETRY_SECONDS
    one.until(lambda: not one.health.problem, "another try")
    one.turn()
    one.raise_xid((FIRST, 48))
    assert one.health.faults == {"GPU-first": fault(48)}


def test_errors_while_waiting_are_told_and_survived(machine: Machine, watched: Callable[..., Watched]) -> None:
    one = watched()
    machine.errors["nvmlEventSetWait_v2", "-"] = 999
    machine.tell()
    one.until(lambda: one.health.problem == "nvmlEventSetWait: Unknown Error", "the problem")
    machine.errors.clear()
    machine.tell()
    one.until(lambda: not one.health.problem, "its end")


def test_a_wait_that_hangs_is_told(machine: Machine, watched: Callable[..., Watched]) -> None:
    one = watched()
    machine.hangs.add("nvmlEventSetWait_v2")
    machine.tell()
    one.until(lambda: _advance(one, SILENT_SECONDS + 1) and "not answered" in one.health.problem, "the silence")
    machine.hangs.clear()
    machine.tell()
    one.until(lambda: not one.health.problem, "an answer")


def _advance(one: Watched, seconds: float) -> bool:
    one.clock.now += seconds
    return True


def test_a_fault_stays(machine: Machine, watched: Callable[..., Watched]) -> None:
    one = watched()
    one.raise_xid((FIRST, 48))
    one.clock.now += 10 * RECOVERY_SECONDS
    one.raise_xid((SECOND, 43))
    assert one.health.faults == {"GPU-first": fault(48)}


def test_with_recovery_it_ends_after_ten_minutes_of_answers(machine: Machine, watched: Callable[..., Watched]) -> None:
    one = watched(recovery=True)
    one.raise_xid((FIRST, 48))
    one.clock.now += 1
    asked = machine.calls("nvmlDeviceGetMemoryInfo_v2")
    one.until(lambda: machine.calls("nvmlDeviceGetMemoryInfo_v2") > asked, "the first answer")
    one.clock.now += RECOVERY_SECONDS - 1
    one.raise_xid((SECOND, 43))
    assert "GPU-first" in one.health.faults
    one.clock.now += 1
    one.until(lambda: not one.health.faults, "the end of the fault")


def test_recovery_begins_anew_with_silence_and_with_another_error(
    machine: Machine, watched: Callable[..., Watched]
) -> None:
    one = watched(recovery=True)
    one.raise_xid((FIRST, 48))
    for disturb in ("silence", "error"):
        one.clock.now += RECOVERY_SECONDS - 1
        if disturb == "silence":
            machine.errors["nvmlDeviceGetMemoryInfo_v2", FIRST] = 15
            machine.tell()
            asked = machine.calls("nvmlDeviceGetMemoryInfo_v2")
            one.until(
                lambda asked=asked: _advance(one, 0.001) and machine.calls("nvmlDeviceGetMemoryInfo_v2") > asked + 1,
                "no answer",
            )
            machine.errors.clear()
            machine.tell()
        else:
            one.raise_xid((FIRST, 63))
        one.clock.now += 1
        one.raise_xid((SECOND, 43))
        assert list(one.health.faults) == ["GPU-first"]


def test_faults_outlive_a_session(machine: Machine, watched: Callable[..., Watched]) -> None:
    one = watched()
    one.raise_xid((FIRST, 48))
    thread = one.health._watcher
    assert thread is not None
    machine.events.append((SECOND, XID, 31))
    machine.tell()
    turns = machine.calls("nvmlEventSetWait_v2")
    end = time.monotonic() + PATIENCE
    while machine.calls("nvmlEventSetWait_v2") < turns + 2:  # one that began with the event there, and has come back
        assert time.monotonic() < end
        time.sleep(0.005)
    one.health.stop()
    thread.join(PATIENCE)
    assert one.health.events() == [Xid("GPU-second", 31)], "taken, and not asked for before the session was lost"
    assert one.health.problem == "NVML is not open"
    assert one.health.faults == {"GPU-first": fault(48)}
    one.nvml = Nvml()
    try:
        one.watch()
        one.turn()
        one.raise_xid((SECOND, 48))
        assert one.health.faults == {"GPU-first": fault(48), "GPU-second": fault(48)}
    finally:
        thread = one.health._watcher
        one.health.stop()
        assert thread is not None
        thread.join(PATIENCE)
        one.nvml.close()
