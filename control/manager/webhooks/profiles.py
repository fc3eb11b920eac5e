"""ClusterColocationProfiles: which profiles select an object, and what they change in it (spec 04 §8, §11.2, §18).
Pure.

The set of matching profiles is determined before any of them is applied, so a label that one adds cannot make another
match. Application changes the object (plain JSON) in place. The pod webhook, the Reservation webhook and the
colocationprofile controller share this module and apply different parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from control.manager.webhooks import podschema
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.objects import Json, own_annotations, own_labels
from koordlet.api import names
from koordlet.api.core import PriorityClass
from koordlet.api.crs.config import ClusterColocationProfile, ClusterColocationProfileSpec
from koordlet.api.encoding.strategicmerge import MergeSchema, StrategicPatchError, apply
from koordlet.api.meta import SelectorError

Labels = Mapping[str, str]

_INTEGER = re.compile(r"[+-]?[0-9]+")


class ProfileProblem(NamedTuple):
    """A profile that could not be evaluated, and the reason."""

    profile: ClusterColocationProfile
    reason: str


@dataclass(frozen=True)
class Matched:
    """The matching profiles in ascending order of their names, and the problems of others."""

    profiles: tuple[ClusterColocationProfile, ...]
    problems: tuple[ProfileProblem, ...] = ()

    @property
    def priority_classes(self) -> set[str]:
        """The names of the PriorityClasses that the profiles set."""
        return {name for profile in self.profiles if (name := profile.spec.priority_class_name)}

    @property
    def keep_resources(self) -> bool:
        """Whether a profile (even one skipped by probability) forbids the translation of resources."""
        return any(names.ANNOTATION_SKIP_UPDATE_RESOURCES in profile.metadata.annotations for profile in self.profiles)


def match(
    profiles: Iterable[ClusterColocationProfile], labels: Labels, namespace: Labels | None, *, namespaced: bool = True
) -> Matched:
    """The profiles for an object with `labels` in a namespace with the labels `namespace`.

    An absent or empty selector matches everything. A profile with an invalid selector, and one with a namespace
    selector if the namespace cannot be read (None), match nothing and are reported as problems. With `namespaced`
    False namespace selectors are ignored: Reservations have no namespace.
    """
    matching: list[ClusterColocationProfile] = []
    problems: list[ProfileProblem] = []
    for profile in sorted(profiles, key=lambda each: each.metadata.name.encode()):
        spec = profile.spec
        try:
            if namespaced and spec.namespace_selector is not None and not spec.namespace_selector.is_empty():
                if namespace is None:
                    problems.append(ProfileProblem(profile, "spec.namespaceSelector: cannot read the namespace"))
                    continue
                if not spec.namespace_selector.matches(namespace):
                    continue
            if spec.selector is None or spec.selector.matches(labels):
                matching.append(profile)
        except SelectorError as error:
            problems.append(ProfileProblem(profile, f"invalid selector: {error}"))
    return Matched(tuple(matching), tuple(problems))


def percent(profile: ClusterColocationProfile) -> int:
    """The percentage of matching objects that a profile applies to. Raises MutationError, which names the profile."""
    probability = profile.spec.probability
    if probability is None:
        return 100
    if isinstance(probability, int):
        return probability
    number = probability.removesuffix("%")
    if number == probability or not _INTEGER.fullmatch(number):
        raise MutationError(
            f"ClusterColocationProfile {profile.metadata.name}: spec.probability: "
            f"{probability!r} is neither a number nor N%"
        )
    return int(number)


def skipped(share: int, rand: Callable[[], int], *, strict_parity: bool = False) -> bool:
    """Whether a profile with a probability of `share` percent skips this object; `rand` returns 0 to 99.

    Koordinator compares with `>`, so a profile with p percent applies with p+1 percent (spec 04 §20, 17);
    `strict_parity` does the same.
    """
    if share in (0, 100):
        return share == 0
    return rand() > share if strict_parity else rand() >= share


def write_metadata(obj: Json, spec: ClusterColocationProfileSpec) -> None:
    """Set labels and annotations, copy them to new keys (in order of the old keys), append suffixes.

    Copying a missing key sets an empty value, as in Koordinator. An existing suffix is not appended again, so a second
    application changes nothing.
    """
    if spec.labels or spec.label_keys_mapping:
        labels = own_labels(obj)
        labels.update(spec.labels)
        for old, new in sorted(spec.label_keys_mapping.items()):
            labels[new] = labels.get(old) or ""
    if spec.annotations or spec.annotation_keys_mapping:
        annotations = own_annotations(obj)
        annotations.update(spec.annotations)
        for old, new in sorted(spec.annotation_keys_mapping.items()):
            annotations[new] = annotations.get(old) or ""
    if spec.label_suffixes:
        labels = own_labels(obj)
        for key, suffix in sorted(spec.label_suffixes.items()):
            if key in labels and not str(labels[key]).endswith(suffix):
                labels[key] += suffix


def write_class(obj: Json, spec: ClusterColocationProfileSpec) -> None:
    """Set the labels of QoS class and sub-priority."""
    if spec.qos_class:
        own_labels(obj)[names.LABEL_QOS_CLASS] = spec.qos_class
    if spec.koordinator_priority is not None:
        own_labels(obj)[names.LABEL_PRIORITY] = str(spec.koordinator_priority)


def write_priority(pod_spec: Json, priority_class: PriorityClass) -> None:
    """Set name, value and preemption policy of a PriorityClass; a class without policy removes the pod's policy."""
    pod_spec["priorityClassName"] = priority_class.metadata.name
    pod_spec["priority"] = priority_class.value
    if priority_class.preemption_policy is None:
        pod_spec.pop("preemptionPolicy", None)
    else:
        pod_spec["preemptionPolicy"] = priority_class.preemption_policy


def patched(obj: Json, profile: ClusterColocationProfile, schema: MergeSchema) -> Json:
    """The object after the profile's strategic merge patch. Raises MutationError."""
    if not profile.spec.patch:
        return obj
    try:
        return apply(obj, profile.spec.patch, schema)
    except StrategicPatchError as error:
        raise MutationError(f"ClusterColocationProfile {profile.metadata.name}: spec.patch: {error}") from error


def apply_profile(
    obj: Json,
    profile: ClusterColocationProfile,
    classes: Mapping[str, PriorityClass],
    *,
    pod_spec: Json | None,
    schema: MergeSchema = podschema.POD,
) -> Json:
    """Apply one profile as admission does. Returns the result, which is a new object if the profile has a patch.

    `pod_spec` is the part of `obj` that gets scheduler name and priority; None if it has no pod template. Raises
    MutationError, also when the PriorityClass does not exist.
    """
    spec = profile.spec
    write_metadata(obj, spec)
    if spec.scheduler_name and pod_spec is not None:
        pod_spec["schedulerName"] = spec.scheduler_name
    write_class(obj, spec)
    if spec.priority_class_name:
        priority_class = classes.get(spec.priority_class_name)
        if priority_class is None:
            raise MutationError(
                f"ClusterColocationProfile {profile.metadata.name}: spec.priorityClassName: "
                f'PriorityClass "{spec.priority_class_name}" not found'
            )
        if pod_spec is not None:
            write_priority(pod_spec, priority_class)
    return patched(obj, profile, schema)
