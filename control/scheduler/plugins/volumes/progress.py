"""Whether the volumes of a pod are bound, or will not be (spec 05 §4). Pure.

The stores may be older than what this process has written. An object that is older than its own write is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping

from control.scheduler.plugins.volumes.claims import SELECTED_NODE, Storage, is_bound
from control.scheduler.plugins.volumes.matching import VolumePlan, reachable
from control.scheduler.state.versions import reached
from koordlet.api.core import Node, PersistentVolume, PersistentVolumeClaim


def binding_progress(
    storage: Storage, plan: VolumePlan, node: Node | None, written: Mapping[str, str]
) -> tuple[bool, str]:
    """(whether every claim of the plan is bound, why it never will be; "" if it may).

    `written`: resourceVersions of the volumes (by name) and claims (`namespace/name`) that this process has changed."""
    if node is None:
        return False, "the node is gone"
    complete = True
    for key, name in plan.matched:
        bound, problem = _matched(storage.claim(key), storage.volume(name), node, written.get(name, ""), key, name)
        if problem:
            return False, problem
        complete &= bound
    for key in plan.provisioned:
        bound, problem = _provisioned(storage, storage.claim(key), node, written.get(key, ""), key)
        if problem:
            return False, problem
        complete &= bound
    return complete, ""


def _matched(
    claim: PersistentVolumeClaim | None, volume: PersistentVolume | None, node: Node, written: str, key: str, name: str
) -> tuple[bool, str]:
    if claim is None or volume is None:
        return False, f"claim {key} or volume {name} is gone"
    if not reached(volume.metadata.resource_version, written):
        return False, ""
    if not reachable(volume, node):
        return False, _unreachable(volume, node)
    if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
        return False, f"claimRef of volume {name} was reset"
    return is_bound(claim), ""


def _provisioned(
    storage: Storage, claim: PersistentVolumeClaim | None, node: Node, written: str, key: str
) -> tuple[bool, str]:
    if claim is None:
        return False, f"claim {key} is gone"
    if not reached(claim.metadata.resource_version, written):
        return False, ""
    if claim.metadata.annotations.get(SELECTED_NODE) != node.metadata.name:
        return False, f"provisioning failed for claim {key}"  # the provisioner has removed its node
    if claim.spec.volume_name:
        volume = storage.volume(claim.spec.volume_name)
        if volume is None:
            return False, ""
        if not reachable(volume, node):
            return False, _unreachable(volume, node)
    return is_bound(claim), ""


def _unreachable(volume: PersistentVolume, node: Node) -> str:
    return f"volume {volume.metadata.name} cannot be reached from node {node.metadata.name}"
