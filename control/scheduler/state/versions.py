"""resourceVersions of one kind, compared."""

from __future__ import annotations


def reached(version: str, target: str) -> bool:
    """Whether resourceVersion `version` is `target` or newer."""
    return (len(version), version) >= (len(target), target)
