"""Kernel counters at any moment of a test, so that test and koordlet speak of the same seconds whatever the load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from tests.koordlet.process.patience import until

SAMPLE_SECONDS = 0.1


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Witness:
    """Reads cumulative counters in a thread; answers what they were at any moment since the block began."""

    def __init__(self, sources: dict[str, Callable[[], float]]) -> None:
        self._sources = sources
        self._seen: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.error: Exception | None = None

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            for name, read in self._sources.items():
                try:
                    before = boot_time()
                    value = read()
                    self._seen[name].append(((before + boot_time()) / 2, value))
                except Exception as error:  # noqa: BLE001 - the test's thread reports it
                    self.error = error
                    return

    def __enter__(self) -> Witness:
        self._thread.start()
        until(lambda: self.error or all(self._seen.values()), "the witness's first look")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        assert self.error is None, self.error

    def at(self, name: str, moment: float) -> float:
        until(lambda: not self._thread.is_alive() or self._seen[name][-1][0] >= moment, f"a look at {name}")
        times, values = np.array(self._seen[name]).T
        assert times[0] <= moment <= times[-1], f"{name} was not watched at {moment}"
        return float(np.interp(moment, times, values))

    def delta(self, name: str, start: float, end: float) -> float:
        return self.at(name, end) - self.at(name, start)

    def lowest(self, name: str) -> float:
        return min(value for _, value in self._seen[name])

    def average(self, name: str, start: float, end: float) -> float:
        times, values = np.array(self._seen[name]).T
        return float(values[(times >= start) & (times <= end)].mean())
