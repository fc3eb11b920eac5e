"""Xid errors: which are faults, of which GPU, and what ends a fault (spec 08 §4.7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from koordlet.devices.health import (
    APPLICATION_XIDS,
    NOT_SUPPORTED,
    RECOVERY_SECONDS,
    RETRY_SECONDS,
    SILENT_SECONDS,
    GpuHealth,
    Xid,
    faults_of,
)
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.devices.nvml import XID, Nvml, XidEvent
from tests.fakeclock import SetTime
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
        *((XidEvent(FIRST, xid), "", {}) for xid in sorted(APPLICATION_XIDS)),
        (XidEvent("", 31), "", {}),
        (XidEvent(FIRST, 31), SECOND, {}),
        (XidEvent(FIRST, 48), "", {"GPU-first": fault(48)}),
        (XidEvent("", 94), "", {"GPU-first": fault(94), "GPU-second": fault(94)}),
        (XidEvent(FIRST, 79), FIRST, {"GPU-first": LOST}),
        (XidEvent(FIRST, 79), SECOND, {"GPU-first": fault(79), "GPU-second": LOST}),
        (XidEvent("0000:09:00.0", 79), "", {}),
        (XidEvent("", 79), FIRST, {"GPU-first": fault(79), "GPU-second": fault(79)}),
    ],
)
def test_faults_of_an_event(event: XidEvent, lost: str, expected: dict[str, DeviceFault]) -> None:
    assert faults_of(event, GPUS, lambda bus_id: "GPU is lost" if bus_id == lost else "") == expected


def test_application_xids_are_those_of_the_specification() -> None:
    assert sorted(APPLICATION_XIDS) == [13, 31, 43, 45, 68, 109]


class Watched:
    """A `GpuHealth` over the tests' library, with short slices."""

    def __init__(self, machine: Machine, nvml: Nvml, **how: bool) -> None:
        self.machine, self.nvml, self.gpus, self.clock = machine, nvml, GPUS, SetTime()
        self.health = GpuHealth(self.clock, seconds=0.01, **how)
        self.xids: list[Xid] = []
        self.watch()

    def watch(self) -> None:
        self.health.watch(self.nvml, self.gpus)
        self.xids += self.health.events()

    def raise_xid(self, *events: tuple[str, int]) -> None:
        """Raise Xids and wait until they were handled."""
        known = len(self.xids)
        self.machine.events += [(address, XID, number) for address, number in events]
        self.machine.tell()
        self.until(lambda: len(self.xids) >= known + len(events), "the events")
        self.turn()  # in which they are evaluated
        self.watch()

    def turn(self) -> None:
        """Until the watcher waits again."""
        turns = self.machine.calls("nvmlEventSetWait_v2")
        self.until(lambda: self.machine.calls("nvmlEventSetWait_v2") > turns, "a turn")

    def until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"timeout waiting for {what}"
            time.sleep(0.005)
            self.watch()


@pytest.fixture
def watched(machine: Machine, connect: Callable[[], Nvml]) -> Iterator[Callable[..., Watched]]:
    """Creates watched GPUs; stops watching before the session is closed."""
    started: list[Watched] = []

    def make(**how: bool) -> Watched:
        started.append(Watched(machine, connect(), **how))
        started[-1].until(
            lambda: machine.calls("nvmlEventSetWait_v2") > 0 or bool(started[-1].health.problem), "a turn"
        )
        return started[-1]

    yield make
    machine.errors.clear()
    machine.hangs.clear()
    machine.tell()
    for watch in started:
        thread = watch.health._watcher
        watch.health.stop()
        if thread is not None:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_gpus_are_healthy_until_an_event(machine: Machine, watched: Callable[..., Watched]) -> None:
    watch = watched()
    assert (watch.health.problem, watch.health.faults) == ("", {})
    watch.raise_xid((FIRST, 43))
    assert (watch.health.faults, watch.xids) == ({}, [Xid("GPU-first", 43)])
    watch.raise_xid((FIRST, 48))
    assert watch.health.faults == {"GPU-first": fault(48)}
    watch.raise_xid(("?", 94))
    assert watch.health.faults == {"GPU-first": fault(94), "GPU-second": fault(94)}
    assert watch.xids == [Xid("GPU-first", 43), Xid("GPU-first", 48), Xid("", 94)]


def test_a_device_lost_at_the_time_of_an_event_is_faulty(machine: Machine, watched: Callable[..., Watched]) -> None:
    watch = watched()
    machine.errors["nvmlDeviceGetHandleByPciBusId_v2", SECOND] = 15
    watch.raise_xid((FIRST, 79))
    assert watch.health.faults == {"GPU-first": fault(79), "GPU-second": LOST}


def test_a_device_without_events_is_not_supported(machine: Machine, watched: Callable[..., Watched]) -> None:
    machine.errors["nvmlDeviceRegisterEvents", SECOND] = 3
    machine.tell()
    watch = watched(recovery=True)
    watch.until(lambda: watch.health.faults == {"GPU-second": NOT_SUPPORTED}, "the unsupported device")
    watch.clock.now += RECOVERY_SECONDS
    watch.raise_xid((FIRST, 48))
    assert watch.health.faults == {"GPU-first": fault(48), "GPU-second": NOT_SUPPORTED}


def test_a_refused_registration_is_retried(machine: Machine, watched: Callable[..., Watched]) -> None:
    machine.errors["nvmlDeviceRegisterEvents", FIRST] = 4
    machine.tell()
    watch = watched()
    watch.until(lambda: "GPU-first" in watch.health.unwatched, "the refusal")
    assert watch.health.unwatched["GPU-first"] == "nvmlDeviceRegisterEvents: Insufficient Permissions"
    machine.errors.clear()
    machine.tell()
    watch.raise_xid((SECOND, 48))
    assert list(watch.health.unwatched) == ["GPU-first"]
    watch.clock.now += RETRY_SECONDS
    watch.until(lambda: not watch.health.unwatched, "another try")
    watch.raise_xid((FIRST, 48))
    assert watch.health.faults == {"GPU-first": fault(48), "GPU-second": fault(48)}


def test_a_device_that_was_unbound_is_registered_again(machine: Machine, watched: Callable[..., Watched]) -> None:
    """Unbound from its driver and bound again, as for a reset."""
    watch = watched()
    known = machine.calls("nvmlDeviceRegisterEvents")
    watch.gpus = {SECOND: GPUS[SECOND]}
    watch.watch()
    watch.turn()
    watch.turn()  # the first may have begun earlier
    assert machine.calls("nvmlDeviceRegisterEvents") == known
    watch.gpus = GPUS
    watch.until(lambda: machine.calls("nvmlDeviceRegisterEvents") == known + 1, "the other one's")
    watch.turn()
    watch.raise_xid((FIRST, 48))
    assert watch.health.faults == {"GPU-first": fault(48)}


def test_without_an_event_set_the_health_is_unknown(machine: Machine, watched: Callable[..., Watched]) -> None:
    machine.errors["nvmlEventSetCreate", "-"] = 999
    machine.tell()
    watch = watched()
    assert watch.health.problem == "nvmlEventSetCreate: Unknown Error"
    machine.errors.clear()
    machine.tell()
    watch.watch()
    assert watch.health.problem
    watch.clock.now += RETRY_SECONDS
    watch.until(lambda: not watch.health.problem, "another try")
    watch.turn()
    watch.raise_xid((FIRST, 48))
    assert watch.health.faults == {"GPU-first": fault(48)}


def test_errors_while_waiting_are_reported_and_survived(machine: Machine, watched: Callable[..., Watched]) -> None:
    watch = watched()
    machine.errors["nvmlEventSetWait_v2", "-"] = 999
    machine.tell()
    watch.until(lambda: watch.health.problem == "nvmlEventSetWait: Unknown Error", "the problem")
    machine.errors.clear()
    machine.tell()
    watch.until(lambda: not watch.health.problem, "its end")


def test_a_hanging_wait_is_reported(machine: Machine, watched: Callable[..., Watched]) -> None:
    watch = watched()
    machine.hangs.add("nvmlEventSetWait_v2")
    machine.tell()
    watch.until(lambda: _advance(watch, SILENT_SECONDS + 1) and "not answered" in watch.health.problem, "the silence")
    machine.hangs.clear()
    machine.tell()
    watch.until(lambda: not watch.health.problem, "an answer")


def _advance(watch: Watched, seconds: float) -> bool:
    watch.clock.now += seconds
    return True


def test_a_fault_is_permanent_without_recovery(machine: Machine, watched: Callable[..., Watched]) -> None:
    watch = watched()
    watch.raise_xid((FIRST, 48))
    watch.clock.now += 10 * RECOVERY_SECONDS
    watch.raise_xid((SECOND, 43))
    assert watch.health.faults == {"GPU-first": fault(48)}


def test_with_recovery_a_fault_ends_after_ten_minutes_of_responses(
    machine: Machine, watched: Callable[..., Watched]
) -> None:
    watch = watched(recovery=True)
    watch.raise_xid((FIRST, 48))
    watch.clock.now += 1
    calls = machine.calls("nvmlDeviceGetMemoryInfo_v2")
    watch.until(lambda: machine.calls("nvmlDeviceGetMemoryInfo_v2") > calls, "the first answer")
    watch.clock.now += RECOVERY_SECONDS - 1
    watch.raise_xid((SECOND, 43))
    assert "GPU-first" in watch.health.faults
    watch.clock.now += 1
    watch.until(lambda: not watch.health.faults, "the end of the fault")


def test_recovery_restarts_after_silence_and_after_another_error(
    machine: Machine, watched: Callable[..., Watched]
) -> None:
    watch = watched(recovery=True)
    watch.raise_xid((FIRST, 48))
    for disturb in ("silence", "error"):
        watch.clock.now += RECOVERY_SECONDS - 1
        if disturb == "silence":
            machine.errors["nvmlDeviceGetMemoryInfo_v2", FIRST] = 15
            machine.tell()
            calls = machine.calls("nvmlDeviceGetMemoryInfo_v2")

            def asked_twice(calls: int = calls) -> bool:
                return _advance(watch, 0.001) and machine.calls("nvmlDeviceGetMemoryInfo_v2") > calls + 1

            watch.until(asked_twice, "no answer")
            machine.errors.clear()
            machine.tell()
        else:
            watch.raise_xid((FIRST, 63))
        watch.clock.now += 1
        watch.raise_xid((SECOND, 43))
        assert list(watch.health.faults) == ["GPU-first"]


def test_faults_survive_a_session(machine: Machine, watched: Callable[..., Watched]) -> None:
    watch = watched()
    watch.raise_xid((FIRST, 48))
    thread = watch.health._watcher
    assert thread is not None
    machine.events.append((SECOND, XID, 31))
    machine.tell()
    turns = machine.calls("nvmlEventSetWait_v2")
    end = time.monotonic() + PATIENCE
    while machine.calls("nvmlEventSetWait_v2") < turns + 2:  # one that began with the event and has returned
        assert time.monotonic() < end
        time.sleep(0.005)
    watch.health.stop()
    thread.join(PATIENCE)
    assert watch.health.events() == [Xid("GPU-second", 31)], "handled, but not read before the session was lost"
    assert watch.health.problem == "NVML is not open"
    assert watch.health.faults == {"GPU-first": fault(48)}
    watch.nvml = Nvml()
    try:
        watch.watch()
        watch.turn()
        watch.raise_xid((SECOND, 48))
        assert watch.health.faults == {"GPU-first": fault(48), "GPU-second": fault(48)}
    finally:
        thread = watch.health._watcher
        watch.health.stop()
        assert thread is not None
        thread.join(PATIENCE)
        watch.nvml.close()
