"""DefaultPreBind: one patch with all changes that PreBind plugins made to a pod (spec 05 §5.7, §13.4).

The patch contains the uid, so that a newer pod of the same name is not changed. Plugins may change labels, annotations
and the resources of containers. Containers are merged by name, because the scheduler's copy of them is incomplete.
Conflicts, responses 429 and broken connections are retried a few times.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from control.scheduler.framework.plugin import CycleState, Plugin
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus, error
from control.scheduler.state.pods import POD, PodInfo
from koordlet.api.core import Pod
from koordlet.api.core.pod import Container
from koordlet.api.encoding import wire
from koordlet.kube import Conflict, ConnectionFailed, KubeError, PatchKind, TooManyRequests, merge_diff

MAX_ATTEMPTS: Final = 4
FIRST_DELAY_S: Final = 0.01
DELAY_FACTOR: Final = 5.0
JITTER: Final = 0.1
"""Part of the delay that is random."""
DELETED: Final = "pod is being deleted"


class DefaultPreBind(Plugin):
    """See the module text."""

    name = "DefaultPreBind"

    async def apply_patch(self, state: CycleState, pod: PodInfo, original: Pod, changed: Pod) -> PluginStatus:
        if pod.subject != POD:
            return SKIP
        try:
            body = pod_patch(original, changed)
        except ValueError as failure:
            return error(str(failure))
        if not body:
            return SUCCESS
        client, meta = self.handle.client, original.metadata
        if client is None:
            return error("no API server to patch pods at")
        body.setdefault("metadata", {})["uid"] = meta.uid
        delay = FIRST_DELAY_S
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                patched = await client.patch(Pod, meta.name, meta.namespace, body=body, kind=PatchKind.STRATEGIC)
            except (Conflict, TooManyRequests, ConnectionFailed) as failure:
                if attempt == MAX_ATTEMPTS:
                    return error(str(failure))
                await self.handle.clock.sleep(delay * (1 + JITTER * random.random()))
                delay *= DELAY_FACTOR
            except KubeError as failure:
                return error(str(failure))
            else:
                return SUCCESS if patched.metadata.deletion_timestamp is None else error(DELETED)
        raise AssertionError("unreachable: the last attempt returns")


def pod_patch(original: Pod, changed: Pod) -> dict[str, Any]:
    """A strategic merge patch from one version to the other; {} if they are equal.

    Raises ValueError for changes of other fields than those in the module text."""
    body: dict[str, Any] = {}
    before, after = original.metadata, changed.metadata
    metadata = {
        name: diff
        for name in ("labels", "annotations")
        if (diff := merge_diff(getattr(before, name), getattr(after, name)))
    }
    if metadata:
        body["metadata"] = metadata
    spec = {}
    for name, key in (("init_containers", "initContainers"), ("containers", "containers")):
        if entries := _resources(getattr(original.spec, name), getattr(changed.spec, name)):
            spec[key] = entries
    if spec:
        body["spec"] = spec
    rest = msgspec.structs.replace(
        changed.spec, containers=original.spec.containers, init_containers=original.spec.init_containers
    )
    if rest != original.spec:
        fields = ", ".join(sorted(merge_diff(original.spec, rest)))
        raise ValueError(f"PreBind plugins changed what can't be patched: spec.{fields}")
    return body


def _resources(before: list[Container], after: list[Container]) -> list[dict[str, Any]]:
    """A patch entry for each container whose resources changed. Raises ValueError for other changes."""
    entries = []
    for old, new in zip(before, after, strict=True):
        if msgspec.structs.replace(new, resources=old.resources) != old:
            raise ValueError(f"PreBind plugins changed more of container {old.name} than its resources")
        diff = {
            name: change
            for name in ("requests", "limits")
            if (
                change := merge_diff(
                    wire.to_builtins(getattr(old.resources, name)), wire.to_builtins(getattr(new.resources, name))
                )
            )
        }
        if diff:
            entries.append({"name": old.name, "resources": diff})
    return entries
