"""A thread for calls that may never come back, as those into a driver.

The thread is a daemon's: one that hangs keeps neither the loop nor the end of the process waiting, which threads of
`concurrent.futures` would (they are joined at exit). Whoever asks waits with a limit, and asks no more meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Caller:
    """Makes calls one after the other; the thread begins with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """What `call` gives, or raises, in time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def _serve(self) -> None:
        while True:
            call, future = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = call()
            except BaseException as error:  # noqa: BLE001 - the asker's to judge
                future.set_exception(error)
            else:
                future.set_result(found)
            del call, future
