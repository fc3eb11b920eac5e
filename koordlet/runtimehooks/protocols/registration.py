"""The file by which a runtime proxy finds koordlet's hooks (spec 03 §4.2, 08 §8).

It stays when koordlet stops: calls then fail and the proxy goes by the failure policy written in it, and an upgrade of
koordlet needs no new registration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

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
    temporary = path.with_name(f".{FILE}.new")  # the proxy reads names that end in json
    try:
        if path.exists() and path.read_text() == text:
            return path
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RegistrationError(f"{path}: {error.strerror}") from error
    return path
