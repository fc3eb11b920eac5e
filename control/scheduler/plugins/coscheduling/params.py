"""The parameters of a gang, from its PodGroup or its first pod (spec 05 §9.1). Pure except for warnings in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from control.scheduler.config.args import CoschedulingArgs
from koordlet.api import names
from koordlet.api.annotations import gang as gang_annotations
from koordlet.api.annotations.gang import MODE_NON_STRICT, NetworkTopologySpec
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.encoding.wire import Duration, WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

FROM_POD = "GangFromPodAnnotation"
FROM_POD_GROUP = "GangFromPodGroupCRD"


@dataclass(frozen=True, slots=True)
class GangParameters:
    """`minimum` of `total` members must be placed together. `wait`: how long members wait for each other at Permit."""

    minimum: int
    total: int
    mode: str
    policy: str
    wait: Duration
    group: tuple[str, ...]
    """Sorted ids of the gangs that are placed together."""
    created: float
    source: str
    topology: NetworkTopologySpec | None = None

    @property
    def strict(self) -> bool:
        return self.mode != MODE_NON_STRICT


def gang_id(pod: Pod) -> str:
    """`namespace/name` of the pod's gang; empty without a gang."""
    meta = pod.metadata
    name = gang_annotations.gang_name(meta.labels, meta.annotations)
    return f"{meta.namespace}/{name}" if name else ""


def needs_pod_group(pod: Pod) -> bool:
    """Whether a PodGroup, not the pod, has the parameters."""
    return bool(pod.metadata.labels.get(names.LABEL_POD_GROUP))


def of_pod(pod: Pod, args: CoschedulingArgs) -> GangParameters | None:
    """None if the pod does not state the minimum number of members."""
    meta = pod.metadata
    try:
        minimum = gang_annotations.min_available(
            meta.labels, {}
        )  # the label takes precedence over the annotation (spec 05 §9.1)
        if minimum is None:
            minimum = gang_annotations.min_available({}, meta.annotations)
    except WireError as error:
        log.warning("Failed to initialize a gang from its pod", pod=meta.key, err=error)
        return None
    if minimum is None:
        return None
    created = meta.creation_timestamp
    wait = gang_annotations.waiting_time(meta.annotations, args.default_timeout)
    return _parameters(gang_id(pod), meta.annotations, minimum, wait, created.unix if created else 0.0, FROM_POD, args)


def of_pod_group(group: PodGroup, args: CoschedulingArgs) -> GangParameters:
    meta, seconds = group.metadata, group.spec.schedule_timeout_seconds
    wait = Duration.of(seconds=seconds) if seconds is not None and seconds > 0 else args.default_timeout
    created = meta.creation_timestamp
    key = f"{meta.namespace}/{meta.name}"
    return _parameters(
        key, meta.annotations, group.spec.min_member, wait, created.unix if created else 0.0, FROM_POD_GROUP, args
    )


def _parameters(
    key: str,
    annotations: Mapping[str, str],
    minimum: int,
    wait: Duration,
    created: float,
    source: str,
    args: CoschedulingArgs,
) -> GangParameters:
    return GangParameters(
        minimum=minimum,
        total=gang_annotations.total_number(annotations, minimum),
        mode=gang_annotations.mode(annotations),
        policy=gang_annotations.match_policy(annotations, args.default_match_policy),
        wait=wait,
        group=_group(key, annotations),
        created=created,
        source=source,
        topology=_topology(key, annotations),
    )


def _group(key: str, annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The gangs of the group. With gangs of other namespaces the gang itself is always one of them, so that the group
    is never the own group of another tenant's gang."""
    ids, namespace = gang_annotations.groups(annotations, key), key.partition("/")[0]
    if key not in ids and any(gang_id.partition("/")[0] != namespace for gang_id in ids):
        ids = [*ids, key]
    return tuple(sorted(ids))


def _topology(key: str, annotations: Mapping[str, str]) -> NetworkTopologySpec | None:
    try:
        return gang_annotations.NETWORK_TOPOLOGY_SPEC.get(annotations)
    except WireError as error:
        log.warning("Ignoring the invalid network topology of a gang", gang=key, err=error)
        return None
