"""What admission makes of a new pod, in the order of spec 04 §11.1.

Profiles, translation of resources, extended-resource spec, quota tree, devices. Pure: what the caches know comes in as
`Knowledge`, chance as a function. The steps are named, because their durations are metrics, and the first error ends
the whole. What other packages add to new pods (recommended resources, say) comes in as further `Step`s, before
the profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from control.manager.webhooks.devices import normalise_gpus
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.objects import Json, child, copied, typed
from control.manager.webhooks.profiles import Matched, apply_profile, percent, skipped
from control.manager.webhooks.quotatree import pod_quota_name, require_nodes, tree_selector
from control.manager.webhooks.translation import keep_extended_resources, translate_pod
from koordlet.api.core import Pod, PriorityClass
from koordlet.api.crs.quota import ElasticQuotaProfile
from koordlet.api.encoding.wire import WireError

Gates = Callable[[str], bool]
Step = Callable[[Json], None]
"""Changes a pod in place. Raises MutationError or WireError."""


class Trees(Protocol):
    """What the quota topology knows of trees."""

    def tree_of(self, quota: str, namespace: str) -> str:
        """The tree of the quota of that name, else of the quota bound to the namespace; empty when there is none."""


class NoTrees:
    """The topology while nobody feeds it: no quota is in a tree."""

    def tree_of(self, quota: str, namespace: str) -> str:
        return ""


@dataclass(frozen=True)
class Knowledge:
    """What the decisions need to know beside the pod."""

    gates: Gates
    rand: Callable[[], int]
    """A random number from 0 to 99."""
    matched: Matched = field(default_factory=lambda: Matched(()))
    priority_classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    """Those of `matched.priority_classes` that exist."""
    trees: Trees = field(default_factory=NoTrees)
    quota_profiles: Sequence[ElasticQuotaProfile] = ()
    strict_parity: bool = False
    before: Sequence[tuple[str, Step]] = ()
    """Steps of others, by plugin name."""


Timer = Callable[[str], AbstractContextManager[object]]


def mutate_pod(pod: Json, namespace: str, known: Knowledge, timer: Timer = lambda _: nullcontext()) -> Json:
    """A new pod as it should be; `pod` stays as it is. `timer` is entered for each step by its plugin name.

    Raises MutationError for what can't be done, WireError for a pod that can't be read.
    """
    result = copied(pod)
    for name, step in known.before:
        with timer(name):
            step(result)
    with timer("ClusterColocationProfile"):
        result = _apply_profiles(result, known)
    for name, step in _steps(namespace, known):
        with timer(name):
            step(result)
    return result


def _apply_profiles(pod: Json, known: Knowledge) -> Json:
    if not known.matched.profiles:
        return pod
    for profile in known.matched.profiles:
        if not skipped(percent(profile), known.rand, strict_parity=known.strict_parity):
            pod = apply_profile(pod, profile, known.priority_classes, pod_spec=child(pod, "spec"))
            _check_shape(pod, profile.metadata.name)
    if not known.matched.keep_resources and not known.gates("ColocationProfileSkipMutatingResources"):
        translate_pod(pod)
    return pod


def _check_shape(pod: Json, profile: str) -> None:
    """A profile's patch may put anything anywhere; say whose patch it was."""
    try:
        typed(pod, Pod)
    except WireError as error:
        raise MutationError(f"ClusterColocationProfile {profile}: leaves a pod that can't be read: {error}") from error


def _steps(namespace: str, known: Knowledge) -> Iterator[tuple[str, Step]]:
    if not known.gates("DisableExtendedResourceSpec"):
        yield "ExtendedResourceSpec", keep_extended_resources
    if known.gates("MultiQuotaTree"):
        yield "MultiQuotaTree", lambda pod: _keep_to_tree(pod, namespace, known)
    if not known.gates("DisableDeviceResourceSpec"):
        yield "DeviceResourceSpec", normalise_gpus


def _keep_to_tree(pod: Json, namespace: str, known: Knowledge) -> None:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    tree = known.trees.tree_of(pod_quota_name(labels, namespace), namespace)
    selector = tree_selector(known.quota_profiles, tree) if tree else None
    if selector is not None:
        require_nodes(pod, selector)
