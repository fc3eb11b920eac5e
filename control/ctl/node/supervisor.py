"""Starts and stops parts as detached processes and records them.

A part is a command line. It runs in its own session, its output goes to <state-dir>/logs/<part>.log, and its pid and
start time are on disk before the start returns. Before the start, the command line is recorded as an intent: if
koordctl is killed in between, the next one identifies the process by environment and command line.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import control
from control import processid
from control.ctl.errors import CtlError
from control.ctl.node import processes, state
from control.ctl.node.state import NodeSettings, PartRecord, UpState
from control.processid import ProcessId

CODE_ROOT = Path(control.__file__).resolve().parent.parent
"""Directory from which `python -m` imports the packages when they are not installed."""
MAX_LOG_BYTES = 32 << 20
"""A larger log is moved to <part>.log.1 before the next start."""
TAIL_LINES = 12


class Supervisor:
    """The processes of one state directory; the caller holds its `Lock`."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.state: UpState = state.load(state_dir)
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def settle(self, settings: NodeSettings) -> None:
        """Store the settings."""
        self.state.settings = settings
        self._save()

    def running(self, part: str) -> ProcessId | None:
        """The live process of a part, also one that was started and not recorded."""
        self._reap()
        record = self.state.parts.get(part)
        if record is not None and processid.alive(record.process):
            return record.process
        return self._adopt(part)

    def start(self, part: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> ProcessId:
        """Start `argv`, with `environ` added to the environment, unless the part runs already."""
        running = self.running(part)
        if running is not None:
            return running
        path = self.log_path(part)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(path.name + ".1"))
        self.state.starting[part] = tuple(argv)
        self._save()
        environ = {**os.environ, **(environ or {}), processes.MARK: str(self.state_dir), processes.PART: part}
        with path.open("ab") as log:
            log.write(f"--- {time.strftime('%F %T')} {' '.join(argv)}\n".encode())
            log.flush()
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=CODE_ROOT,
                    env=environ,
                    start_new_session=True,
                )
            except OSError as error:
                del self.state.starting[part]
                self._save()
                raise CtlError(f"cannot start {part}: {argv[0]}: {error.strerror}") from error
        process = processid.identify(child.pid)
        self._children[child.pid] = child
        if process is None:
            raise CtlError(f"{part} ended while it was starting", self.tail(part))
        self._record(part, process, tuple(argv))
        return process

    def stop(self, part: str, seconds: float) -> bool | None:
        """Stop a part; None when it did not run, False when it had to be killed."""
        process = self.running(part)
        orderly = None if process is None else processes.stop(process, seconds)
        self._reap()
        if self.state.parts.pop(part, None) or self.state.starting.pop(part, None):
            self._save()
        return orderly

    def ended(self, part: str) -> bool:
        return self.running(part) is None

    def log_path(self, part: str) -> Path:
        return self.state_dir / "logs" / f"{part}.log"

    def tail(self, part: str) -> str:
        """The last lines of a part's log since its latest start, for an error message."""
        path = self.log_path(part)
        try:
            lines = path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return f"There is no log {path}."
        last = max((i for i, line in enumerate(lines) if line.startswith("--- ")), default=-1)
        shown = lines[last + 1 :][-TAIL_LINES:]
        return "\n  ".join([f"The last lines of {path}:", *shown] if shown else [f"{path} is empty."])

    def _adopt(self, part: str) -> ProcessId | None:
        """The process that was started and not recorded; its children have other command lines."""
        intent = self.state.starting.get(part)
        if intent is None:
            return None
        for process in processes.marked(self.state_dir):
            if process.part == part and process.argv == intent:
                self._record(part, process.id, intent)
                return process.id
        return None

    def _record(self, part: str, process: ProcessId, argv: tuple[str, ...]) -> None:
        self.state.parts[part] = PartRecord(process, argv, str(self.log_path(part)), time.time())
        self.state.starting.pop(part, None)
        self._save()

    def _save(self) -> None:
        state.save(self.state_dir, self.state)

    def _reap(self) -> None:
        """Reap children that ended while this process (the demo) runs."""
        for pid in [pid for pid, child in self._children.items() if child.poll() is not None]:
            del self._children[pid]
