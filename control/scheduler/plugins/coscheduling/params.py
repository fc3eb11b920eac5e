"""What a gang wants, as its PodGroup or its first pod says (spec 05 §9.1). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from control.scheduler.config.args import CoschedulingArgs
from koordlet.api import names
from koordlet.api.annotations import gang as said
from koordlet.api.annotations.gang import MODE_NON_STRICT, NetworkTopologySpec
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.encoding.wire import Duration, WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

FROM_POD = "GangFromPodAnnotation"
FROM_POD_GROUP = "GangFromPodGroupCRD"


@dataclass(frozen=True, slots=True)
class Parameters:
    """`minimum` members must be placed together, of `total`; they wait `wait` for each other."""

    minimum: int
    total: int
    mode: str
    policy: str
    wait: Duration
    group: tuple[str, ...]
    """Ids of the gangs that are placed together, sorted."""
    created: float
    source: str
    topology: NetworkTopologySpec | None = None

    @property
    def strict(self) -> bool:
        return self.mode != MODE_NON_STRICT


def gang_id(pod: Pod) -> str:
    """`namespace/name` of the pod's gang, empty for none."""
    meta = pod.metadata
    name = said.gang_name(meta.labels, meta.annotations)
    return f"{meta.namespace}/{name}" if name else ""


def needs_pod_group(pod: Pod) -> bool:
    """Whether a PodGroup, not the pod, says what the gang wants."""
    return bool(pod.metadata.labels.get(names.LABEL_POD_GROUP))


def of_pod(pod: Pod, args: CoschedulingArgs) -> Parameters | None:
    """None: the pod does not say how many members there must be."""
    meta = pod.metadata
    try:
        minimum = said.min_available(meta.labels, {})  # the label goes before the annotation (spec 05 §9.1)
        if minimum is None:
            minimum = said.min_available({}, meta.annotations)
    except WireError as problem:
        log.warning("Gang can't be initialized from pod", pod=meta.key, err=problem)
        return None
    if minimum is None:
        return None
    created = meta.creation_timestamp
    wait = said.waiting_time(meta.annotations, args.default_timeout)
    return _parameters(gang_id(pod), meta.annotations, minimum, wait, created.unix if created else 0.0, FROM_POD, args)


def of_pod_group(group: PodGroup, args: CoschedulingArgs) -> Parameters:
    meta, seconds = group.metadata, group.spec.schedule_timeout_seconds
    wait = Duration.of(seconds=seconds) if seconds is not None and seconds > 0 else args.default_timeout
    created = meta.creation_timestamp
    key = f"{meta.namespace}/{meta.name}"
    return _parameters(
        key, meta.annotations, group.spec.min_member, wait, created.unix if created else 0.0, FROM_POD_GROUP, args
    )


def _parameters(
    key: str,
    notes: Mapping[str, str],
    minimum: int,
    wait: Duration,
    created: float,
    source: str,
    args: CoschedulingArgs,
) -> Parameters:
    return Parameters(
        minimum=minimum,
        total=said.total_number(notes, minimum),
        mode=said.mode(notes),
        policy=said.match_policy(notes, args.default_match_policy),
        wait=wait,
        group=tuple(sorted(said.groups(notes, key))),
        created=created,
        source=source,
        topology=_topology(key, notes),
    )


def _topology(key: str, notes: Mapping[str, str]) -> NetworkTopologySpec | None:
    try:
        return said.NETWORK_TOPOLOGY_SPEC.get(notes)
    except WireError as problem:
        log.warning("Network topology of gang left aside", gang=key, err=problem)
        return None
