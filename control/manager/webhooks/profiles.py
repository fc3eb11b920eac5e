"""ClusterColocationProfiles: which ones an object gets, and what they write onto it (spec 04 §8, §11.2, §18).

Selection and application are apart because the set of matching profiles is fixed before any of them is applied: a
label that one adds can't make another match. Both are pure: labels, profiles and random numbers come in, the object
(plain JSON) is changed in place. The pod webhook, the Reservation webhook and the controller share them and differ
in what they apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
Profiles = Sequence[ClusterColocationProfile]


class Problem(NamedTuple):
    """A profile that could not be judged, and why."""

    profile: ClusterColocationProfile
    reason: str


@dataclass(frozen=True)
class Matched:
    """Profiles that match, by ascending name, and what was wrong with others."""

    profiles: tuple[ClusterColocationProfile, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def priority_classes(self) -> set[str]:
        """The PriorityClasses that applying them takes."""
        return {each.spec.priority_class_name for each in self.profiles if each.spec.priority_class_name}

    @property
    def keep_resources(self) -> bool:
        """Whether one of them (even one skipped by probability) forbids the translation of resources."""
        return any(names.ANNOTATION_SKIP_UPDATE_RESOURCES in each.metadata.annotations for each in self.profiles)


def match(
    profiles: Iterable[ClusterColocationProfile], own: Labels, namespace: Labels | None, *, namespaced: bool = True
) -> Matched:
    """The profiles for an object with labels `own` in a namespace with labels `namespace`.

    An absent selector matches everything. A bad selector, and a namespace that can't be read (None) under a
    profile that asks for its labels, match nothing and are reported. `namespaced` False ignores namespace
    selectors: Reservations have none.
    """
    found: list[ClusterColocationProfile] = []
    problems: list[Problem] = []
    for profile in sorted(profiles, key=lambda each: each.metadata.name.encode()):
        spec = profile.spec
        try:
            if namespaced and spec.namespace_selector is not None:
                if namespace is None:
                    problems.append(Problem(profile, "spec.namespaceSelector: the namespace can't be read"))
                    continue
                if not spec.namespace_selector.matches(namespace):
                    continue
            if spec.selector is None or spec.selector.matches(own):
                found.append(profile)
        except SelectorError as error:
            problems.append(Problem(profile, f"bad selector: {error}"))
    return Matched(tuple(found), tuple(problems))


def percent(profile: ClusterColocationProfile) -> int:
    """The share of matching objects that a profile is for. Raises MutationError naming the profile."""
    given = profile.spec.probability
    if given is None:
        return 100
    if isinstance(given, int):
        return given
    number = given.removesuffix("%")
    if number == given or not (number.removeprefix("-").isascii() and number.removeprefix("-").isdigit()):
        raise MutationError(
            f"ClusterColocationProfile {profile.metadata.name}: spec.probability: {given!r} is neither a number nor N%"
        )
    return int(number)


def skipped(share: int, rand: Callable[[], int], *, strict_parity: bool = False) -> bool:
    """Whether chance passes over this object; `rand` draws from 0 to 99.

    The reference compares with `>`, which gives a profile of p percent a chance of p+1 (spec 04 §20, 17);
    `strict_parity` does the same.
    """
    if share in (0, 100):
        return share == 0
    return rand() > share if strict_parity else rand() >= share


def write_metadata(obj: Json, spec: ClusterColocationProfileSpec) -> None:
    """Labels and annotations: set, copied from key to key (in order of the old key), suffixed.

    A missing source of a copy gives an empty value, as users of the reference know it. A suffix that is there
    already is not added again, so that a second pass changes nothing.
    """
    if spec.labels or spec.label_keys_mapping:
        own = own_labels(obj)
        own.update(spec.labels)
        for old, new in sorted(spec.label_keys_mapping.items()):
            own[new] = own.get(old) or ""
    if spec.annotations or spec.annotation_keys_mapping:
        notes = own_annotations(obj)
        notes.update(spec.annotations)
        for old, new in sorted(spec.annotation_keys_mapping.items()):
            notes[new] = notes.get(old) or ""
    if spec.label_suffixes:
        own = own_labels(obj)
        for key, suffix in sorted(spec.label_suffixes.items()):
            if key in own and not str(own[key]).endswith(suffix):
                own[key] += suffix


def write_class(obj: Json, spec: ClusterColocationProfileSpec) -> None:
    """QoS class and sub-priority, both labels."""
    if spec.qos_class:
        own_labels(obj)[names.LABEL_QOS_CLASS] = spec.qos_class
    if spec.koordinator_priority is not None:
        own_labels(obj)[names.LABEL_PRIORITY] = str(spec.koordinator_priority)


def write_priority(pod_spec: Json, priority_class: PriorityClass) -> None:
    """Name, value and preemption policy of a PriorityClass; a class without policy unsets the pod's."""
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
    """One profile as admission applies it; the object afterwards (the patch gives a new one).

    `pod_spec` is where scheduler and priority go, inside `obj`; None if it has no pod template. Raises
    MutationError when the PriorityClass does not exist.
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
