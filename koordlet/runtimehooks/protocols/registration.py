"""The file that registers koordlet's hooks with a runtime proxy (spec 03 §4.2, 08 §8).

It stays when koordlet stops: calls then fail, the proxy applies the failure policy in the file, and an upgrade of
koordlet needs no new registration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from koordlet.app import atomicfile
from koordlet.runtimehooks.stages import FailurePolicy, HookStage

FILE = "koordlet.json"


class RegistrationFileError(Exception):
    """The file could not be written; the message has its path and the cause."""


def register(directory: Path, endpoint: str, policy: FailurePolicy, stages: Iterable[HookStage]) -> Path:
    """Replace the file if its content changes. `endpoint`: path of the socket on the host. Raises
    RegistrationFileError."""
    path = directory / FILE
    document = {
        "remote-endpoint": endpoint,
        "failure-policy": policy.value,
        "runtime-hooks": sorted(stage.value for stage in stages),
    }
    text = json.dumps(document, indent="\t")
    try:
        if path.exists() and path.read_text() == text:
            return path
        atomicfile.write(path, text.encode(), mode=0o644)  # the proxy reads only names that end in json
    except OSError as error:
        raise RegistrationFileError(f"{path}: {error.strerror}") from error
    return path
