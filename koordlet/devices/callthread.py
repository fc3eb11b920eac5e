"""A thread for calls that may never return, such as calls into a driver.

The thread is a daemon thread: a call that hangs blocks neither the event loop nor the end of the process. Threads of
`concurrent.futures` would, because they are joined at exit. Callers wait with a timeout, and make no further call
meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class CallThread:
    """Runs calls one after the other; the thread starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The result or the exception of `call`."""
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
                result = call()
            except BaseException as error:  # noqa: BLE001 - handled by the caller
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del call, future
