"""Owners and their pods: references, templates, and states of pods. Pure functions."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from control.standalone.controllers.conditions import is_true
from control.standalone.selectors import label_selector

Json = dict[str, Any]


def reference(owner: Mapping[str, Any]) -> Json:
    """The controller reference to `owner`."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: Mapping[str, Any]) -> Json | None:
    """The reference of the object that controls this one."""
    references = obj["metadata"].get("ownerReferences") or ()
    return next((each for each in references if each.get("controller")), None)


def controlled_by(obj: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    controller = controller_of(obj)
    return controller is not None and controller.get("uid") == owner["metadata"]["uid"]


def owner_key(obj: Mapping[str, Any], kind: str) -> list[tuple[str, str]]:
    """The queue key of the controller of `obj`, if it has this kind."""
    controller = controller_of(obj)
    if controller is None or controller.get("kind") != kind:
        return []
    return [(obj["metadata"].get("namespace") or "", controller["name"])]


def children(objects: Iterable[Json], owner: Mapping[str, Any]) -> tuple[list[Json], list[Json]]:
    """(objects controlled by `owner`, orphans that its selector matches and that it should adopt)."""
    matches = label_selector((owner.get("spec") or {}).get("selector"))
    controlled, orphans = [], []
    for obj in objects:
        if controlled_by(obj, owner):
            controlled.append(obj)
        elif (
            controller_of(obj) is None
            and not obj["metadata"].get("deletionTimestamp")
            and matches(obj["metadata"].get("labels") or {})
        ):
            orphans.append(obj)
    return controlled, orphans


def pod_from(owner: Mapping[str, Any], template: Mapping[str, Any], name: str = "", **labels: str) -> Json:
    """A new pod of `owner` from its template; without `name` the server generates one."""
    metadata = template.get("metadata") or {}
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": dict(metadata.get("annotations") or {}),
            "finalizers": list(metadata.get("finalizers") or []),
            "ownerReferences": [reference(owner)],
        },
        "spec": copy.deepcopy(template.get("spec") or {}),
    }
    if name:
        pod["metadata"]["name"] = name
    else:
        pod["metadata"]["generateName"] = owner["metadata"]["name"] + "-"
    pod["metadata"] = {key: value for key, value in pod["metadata"].items() if value}
    return pod


def template_hash(template: Mapping[str, Any]) -> str:
    """A short hash of a template's content, as text."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    alphabet = "bcdfghjklmnpqrstvwxz2456789"
    out = ""
    for _ in range(10):
        digest, rest = divmod(digest, len(alphabet))
        out += alphabet[rest]
    return out


def phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def finished(pod: Mapping[str, Any]) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def active(pod: Mapping[str, Any]) -> bool:
    """Neither finished nor being deleted."""
    return not finished(pod) and not pod["metadata"].get("deletionTimestamp")


def ready(pod: Json) -> bool:
    return is_true(pod, "Ready")


def deletion_order(pod: Json) -> tuple[int, int, int, str]:
    """Sort key of the pods to delete first: unbound, not running, not ready, then the youngest."""
    bound = 1 if (pod.get("spec") or {}).get("nodeName") else 0
    running = 1 if phase(pod) == "Running" else 0
    age = "".join(chr(0x10FFFF - ord(c)) for c in pod["metadata"].get("creationTimestamp", ""))
    return bound, running, 1 if ready(pod) else 0, age


def amount(value: Any, total: int, round_up: bool) -> int:
    """The number for an int-or-percent value of `total`."""
    if isinstance(value, int):
        return value
    share = int(str(value).rstrip("%")) * total
    return -(-share // 100) if round_up else share // 100
