"""The allocated devices that a container may get: those that its pod's annotation names and no other pod has. Pure."""

from __future__ import annotations

from koordlet.api.annotations.device import PodDeviceAllocation
from koordlet.qosmanager.engine.view import NodeView
from koordlet.runtimehooks.stages import HookContext, HookError
from koordlet.statesinformer.pods.deviceallocation import MinorsOf, accept_devices


def allowed_devices(
    context: HookContext, view: NodeView, kind: str, minors: MinorsOf
) -> tuple[PodDeviceAllocation, ...]:
    """The devices of type `kind`. The listed pods of the view keep what they have. Raises HookError for a malformed
    or refused allocation."""
    meta = context.pod.meta
    own = meta.device_allocation
    if own.error:
        raise HookError(own.error)
    if meta.pod is None or not own.devices.get(kind):
        return ()
    pods = {other.meta.uid: (other.meta.pod, other.meta.device_allocation) for other in view.pods if other.meta.pod}
    held = {uid: allocation for uid, (_, allocation) in pods.items() if allocation.shares}
    listed = pods.get(meta.uid)
    pods[meta.uid] = (meta.pod if listed is None else listed[0], own)
    accepted = accept_devices(pods, held, minors)[meta.uid]
    if accepted.refused:
        raise HookError(accepted.refused)
    return accepted.devices.get(kind, ())
