"""Processes of a cluster: start in order, wait until each serves, stop."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Component:
    """A process of the cluster: its command line and a check that it serves."""

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    environment: Mapping[str, str]


class Processes:
    """Components whose logs are below `folder`."""

    def __init__(self, folder: Path, components: Iterable[Component], timeout_s: float = START_TIMEOUT_S) -> None:
        self.folder = folder
        self.timeout_s = timeout_s
        self.components = {component.name: component for component in components}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_component(self, name: str) -> None:
        component = self.components[name]
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                component.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **component.environment},
            )
        wait_for(lambda: self._serves(component), f"{name} serves (log: {self.log(name)})", self.timeout_s)

    def kill(self, name: str) -> None:
        self._end(name, signal.SIGKILL)

    def stop(self) -> None:
        for name in reversed(self.components):
            if name in self.processes:
                self._end(name, signal.SIGTERM)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _serves(self, component: Component) -> bool:
        status = self.processes[component.name].poll()
        text = self.log(component.name).read_text(errors="replace")
        assert status is None, f"{component.name} ended with status {status}: {text[-3000:]}"
        return component.ready()

    def _end(self, name: str, number: int) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    """Whether a GET without credentials returns 200."""
    command = ["curl", "--silent", "--insecure", "--fail", "--output", "/dev/null", "--max-time", "2", url]
    return subprocess.run(command, check=False).returncode == 0


def wait_for(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = START_TIMEOUT_S) -> None:
    """Wait until the condition holds; `what` says what did not happen, after the last attempt if it is a function."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what() if callable(what) else what}"
        time.sleep(0.2)
