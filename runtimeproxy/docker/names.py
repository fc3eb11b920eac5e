"""How dockershim represents pods in Docker: names, labels and cgroup parents of pods and containers. Pure.

Sandboxes and containers are both Docker containers. The name contains their pod, a label states which of the two they
are, annotations are labels with a prefix (spec 08 §12).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TYPE_LABEL = "io.kubernetes.docker.type"
SANDBOX_TYPE = "podsandbox"
SANDBOX_NAME = "POD"
"""The container part of a sandbox's name."""
SANDBOX_ID_LABEL = "io.kubernetes.sandbox.id"
ANNOTATION_PREFIX = "annotation."
_PARTS = (6, 7)
"""dockershim adds a seventh, random part when a container that Docker cannot remove has the name."""
_ATTEMPT = re.compile(r"[0-9]{1,10}")
_MAX_ATTEMPT = 2**32 - 1


@dataclass(frozen=True, slots=True)
class KubernetesName:
    """`k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`; no part contains an underscore."""

    container: str
    pod: str
    namespace: str
    uid: str
    attempt: int


def parse_name(name: str) -> KubernetesName | None:
    """The pod and container of a Docker container's name (Docker adds a leading slash); None: not a name of
    dockershim."""
    parts = name.removeprefix("/").split("_")
    if len(parts) not in _PARTS or parts[0] != "k8s" or not all(parts):
        return None
    attempt = parts[5]
    if not _ATTEMPT.fullmatch(attempt) or int(attempt) > _MAX_ATTEMPT:
        return None
    return KubernetesName(parts[1], parts[2], parts[3], parts[4], int(attempt))


def split_labels(labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Docker labels as (labels, annotations) of the pod or container."""
    annotations = {
        key.removeprefix(ANNOTATION_PREFIX): value for key, value in labels.items() if key.startswith(ANNOTATION_PREFIX)
    }
    return {key: value for key, value in labels.items() if not key.startswith(ANNOTATION_PREFIX)}, annotations


def merge_labels(
    docker: Mapping[str, str], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, str]:
    """Docker labels merged with a hook's response: its values win, new keys follow in sorted order, none is removed."""
    returned = {**labels, **{ANNOTATION_PREFIX + key: value for key, value in annotations.items()}}
    merged = {key: returned.pop(key, value) for key, value in docker.items()}
    return {**merged, **dict(sorted(returned.items()))}


def expand_parent(parent: str, driver: str) -> str:
    """The path of a cgroup parent: with the systemd driver Docker gets only the last slice's name.

    `kubepods-burstable-podX.slice` -> `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice`.
    Anything that is not a plain slice name, and everything with another driver, is returned unchanged.
    """
    stem = parent.removesuffix(".slice")
    if driver != "systemd" or "/" in parent or stem == parent or not all(stem.split("-")):
        return parent
    words = stem.split("-")
    return "".join(f"/{'-'.join(words[: depth + 1])}.slice" for depth in range(len(words)))


def docker_parent(path: str, driver: str) -> str:
    """Inverse of `expand_parent`: Docker's `CgroupParent` for a cgroup path."""
    return path.rstrip("/").rpartition("/")[2] if driver == "systemd" else path
