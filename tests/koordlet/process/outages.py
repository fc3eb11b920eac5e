"""What can fail around running components, each with a begin and an end: API server and kubelet, disk, clock."""

from __future__ import annotations

import random
import signal
import subprocess
from typing import Any, Protocol

from tests.steppedclock import SteppedClock

STATE_SIZE = "64m"
"""Of the small file system with koordlet's state directory, which holds a snapshot and the next one."""
EARLIEST_S, LATEST_S = 0.0, 7200.0
"""Range of the clock's steps, seconds ahead of the machine: never before the certificates of the cluster were made."""


class Outage(Protocol):
    """`settled`: whether koordlet can set up new pods meanwhile."""

    name: str
    settled: bool

    def begin(self) -> None: ...
    def end(self) -> None: ...


class StoppedApiServer:
    """It accepts connections and answers nothing (SIGSTOP)."""

    name, settled = "API server stopped", True

    def __init__(self, scene: Any) -> None:
        self._scene = scene

    def begin(self) -> None:
        self._scene.api.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self._scene.api.process.send_signal(signal.SIGCONT)  # no effect on one that was killed meanwhile


class SilentKubelet:
    """It accepts connections and answers nothing."""

    name, settled = "kubelet silent", False

    def __init__(self, scene: Any) -> None:
        self._scene = scene

    def begin(self) -> None:
        self._scene.kubelet.silent = True

    def end(self) -> None:
        self._scene.kubelet.silent = False


class RefusedKubelet:
    """Nothing listens on its port."""

    name, settled = "kubelet refused", False

    def __init__(self, scene: Any) -> None:
        self._scene = scene

    def begin(self) -> None:
        self._scene.kubelet.close()

    def end(self) -> None:
        self._scene.kubelet.listen()


class FullDisk:
    """No byte is left where koordlet keeps its state. It writes no setting then whose old value it could not save."""

    name, settled = "disk full", False

    def __init__(self, view: Any) -> None:
        self._filler = view.from_outside(view.state) / "filler"

    def begin(self) -> None:
        with self._filler.open("wb", buffering=0) as file:
            block = 1 << 20
            while block:
                try:
                    file.write(bytes(block))
                except OSError:
                    block //= 2

    def end(self) -> None:
        self._filler.unlink()


class ClockStep:
    """The wall clock of all components jumps, and stays there."""

    name, settled = "clock step", True

    def __init__(self, clock: SteppedClock, rng: random.Random) -> None:
        self._clock, self._rng = clock, rng

    def begin(self) -> None:
        self._clock.step(self._rng.uniform(EARLIEST_S, LATEST_S))

    def end(self) -> None:
        """It is a step, not an outage."""


def small_state(view: Any) -> None:
    """Mount a small file system at the state directory of the view, before koordlet starts."""
    size = f"size={STATE_SIZE}"
    subprocess.run(view.enter(["mount", "-t", "tmpfs", "-o", size, "none", str(view.state)]), check=True)
