"""The file by which a runtime proxy finds koordlet's hooks (spec 03 §4.2, 08 §8).

It stays when koordlet stops: calls then fail and the proxy goes by the failure policy written in it, and an upgrade of
koordlet needs no new registration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from koordlet.app import atomicfile
from koordlet.runtimehooks.stages import FailurePolicy, Stage

FILE = "koordlet.json"


class RegistrationError(Exception):
    """The file could not be written; the message says which and why."""


def register(directory: Path, endpoint: str, policy: FailurePolicy, stages: Iterable[Stage]) -> Path:
    """Write the file whole or not at all. `endpoint` is the socket as the host sees it. Raises RegistrationError."""
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
        raise RegistrationError(f"{path}: {error.strerror}") from error
    return path
