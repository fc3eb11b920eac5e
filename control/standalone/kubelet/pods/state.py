"""The state of a pod that must survive a restart of the kubelet: one small file per pod.

`<root>/pods/<uid>/state.json`, replaced atomically. Containers are not part of it: the runtime finds them again, and
the restart count is the number of a container's newest attempt.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.standalone.kubelet.pods.status import PhaseDecision
from control.standalone.kubelet.runtimes.launcher import write_json
from koordlet.app.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PodState:
    raw: Mapping[str, Any]
    start_time: float
    admitted: bool
    decision: PhaseDecision | None


class PodStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, uid: str) -> Path:
        return self._root / uid

    def save(self, uid: str, state: PodState) -> None:
        folder = self.folder(uid)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        decision = state.decision
        write_json(
            str(folder / "state.json"),
            {
                "pod": state.raw,
                "startTime": state.start_time,
                "admitted": state.admitted,
                "verdict": None if decision is None else [decision.reason, decision.message, decision.phase],
            },
        )

    def load(self) -> Iterator[tuple[str, PodState]]:
        """Every stored pod; a directory without a readable file is logged and skipped."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in sorted(self._root.iterdir()):
            try:
                data = json.loads((folder / "state.json").read_bytes())
                decision = PhaseDecision(*data["verdict"]) if data["verdict"] else None
                yield folder.name, PodState(data["pod"], data["startTime"], data["admitted"], decision)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("Ignoring unreadable pod state", folder=str(folder), err=error)

    def forget(self, uid: str) -> None:
        shutil.rmtree(self.folder(uid), ignore_errors=True)
