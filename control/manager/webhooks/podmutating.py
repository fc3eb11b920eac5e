"""The mutation of a new pod, in the order of spec 04 §11.1. Pure.

The steps are: additional steps (recommended requests), profiles, translation of resources, extended-resource spec,
quota tree, devices. The objects from the caches and the random number generator are passed as `MutationInputs`. Steps
have names because their durations are metrics. The first error ends the mutation."""

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
    """The tree ids in the quota topology."""

    def tree_of(self, quota: str, namespace: str) -> str:
        """The tree id of the quota with that name, else of the quota bound to the namespace; empty: none."""


class NoTrees:
    """Used while MultiQuotaTree is off: no quota is in a tree."""

    def tree_of(self, quota: str, namespace: str) -> str:
        return ""


@dataclass(frozen=True)
class MutationInputs:
    """The inputs of the mutation other than the pod."""

    gates: Gates
    rand: Callable[[], int]
    """returns a random number from 0 to 99"""
    matched: Matched = field(default_factory=lambda: Matched(()))
    priority_classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    """the existing ones of `matched.priority_classes`, by name"""
    trees: Trees = field(default_factory=NoTrees)
    quota_profiles: Sequence[ElasticQuotaProfile] = ()
    strict_parity: bool = False
    before: Sequence[tuple[str, Step]] = ()
    """additional steps that run before the profiles, with their names"""


Timer = Callable[[str], AbstractContextManager[object]]


def mutate_pod(pod: Json, namespace: str, inputs: MutationInputs, timer: Timer = lambda _: nullcontext()) -> Json:
    """The mutated copy of a new pod. `timer` is entered for each step with the step's name.

    Raises MutationError for a failed step, WireError for an invalid pod.
    """
    result = copied(pod)
    for name, step in inputs.before:
        with timer(name):
            step(result)
    with timer("ClusterColocationProfile"):
        result = _apply_profiles(result, inputs)
    for name, step in _steps(namespace, inputs):
        with timer(name):
            step(result)
    return result


def _apply_profiles(pod: Json, inputs: MutationInputs) -> Json:
    if not inputs.matched.profiles:
        return pod
    for profile in inputs.matched.profiles:
        if not skipped(percent(profile), inputs.rand, strict_parity=inputs.strict_parity):
            pod = apply_profile(pod, profile, inputs.priority_classes, pod_spec=child(pod, "spec"))
            _check_shape(pod, profile.metadata.name)
    if not inputs.matched.keep_resources and not inputs.gates("ColocationProfileSkipMutatingResources"):
        translate_pod(pod)
    return pod


def _check_shape(pod: Json, profile: str) -> None:
    """A profile's patch may write any value into any field: validate the result and name the profile in the error."""
    try:
        typed(pod, Pod)
    except WireError as error:
        raise MutationError(
            f"ClusterColocationProfile {profile}: the patch produces an invalid pod: {error}"
        ) from error


def _steps(namespace: str, inputs: MutationInputs) -> Iterator[tuple[str, Step]]:
    if not inputs.gates("DisableExtendedResourceSpec"):
        yield "ExtendedResourceSpec", keep_extended_resources
    if inputs.gates("MultiQuotaTree"):
        yield "MultiQuotaTree", lambda pod: _require_tree_nodes(pod, namespace, inputs)
    if not inputs.gates("DisableDeviceResourceSpec"):
        yield "DeviceResourceSpec", normalise_gpus


def _require_tree_nodes(pod: Json, namespace: str, inputs: MutationInputs) -> None:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    tree = inputs.trees.tree_of(pod_quota_name(labels, namespace), namespace)
    selector = tree_selector(inputs.quota_profiles, tree) if tree else None
    if selector is not None:
        require_nodes(pod, selector)
