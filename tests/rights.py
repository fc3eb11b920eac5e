"""What roles grant, and what a component asked for by the API server's audit log: the two are to be the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Right = tuple[str, str, str]
"""(group, resource or resource/subresource, verb)"""


def granted(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """By RBAC rules."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(audit: Path, user: str) -> Iterator[tuple[Right, int, str]]:
    """What the user asked for, with the answer's status and the request's URI."""
    for line in map(json.loads, audit.read_text().splitlines()):
        if line["user"]["username"] == user and line["objectRef"].get("resource"):
            ref = line["objectRef"]
            resource = ref["resource"] + (f"/{ref['subresource']}" if ref.get("subresource") else "")
            yield (ref.get("apiGroup", ""), resource, line["verb"]), line["responseStatus"]["code"], line["requestURI"]
