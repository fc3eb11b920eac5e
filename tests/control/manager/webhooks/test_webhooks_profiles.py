"""ClusterColocationProfiles: which match, and what they write (spec 04 §11.2, §18, §20)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.profiles import Matched, apply_profile, match, percent, skipped
from koordlet.api.core import PriorityClass
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.encoding.wire import convert


def profile(name: str = "p", **spec: Any) -> ClusterColocationProfile:
    return convert({"metadata": {"name": name}, "spec": spec}, ClusterColocationProfile)


def names(matched: Matched) -> list[str]:
    return [each.metadata.name for each in matched.profiles]


def label(**labels: Any) -> dict[str, dict[str, str]]:
    return {"matchLabels": labels}


BATCH: dict[str, Any] = {"koord-batch": convert({"metadata": {"name": "koord-batch"}, "value": 5000}, PriorityClass)}

MATCHES = {
    "no selectors match everything": ({}, {}, {}, True),
    "empty selectors match everything": ({"selector": {}, "namespaceSelector": {}}, {}, {}, True),
    "pod and namespace": ({"selector": label(a="1"), "namespaceSelector": label(n="1")}, {"a": "1"}, {"n": "1"}, True),
    "only the pod": ({"selector": label(a="1"), "namespaceSelector": label(n="1")}, {"a": "1"}, {"n": "2"}, False),
    "only the namespace": ({"selector": label(a="1"), "namespaceSelector": label(n="1")}, {}, {"n": "1"}, False),
    "expressions": (
        {"selector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}},
        {},
        {},
        True,
    ),
}


@pytest.mark.parametrize(("spec", "pod", "namespace", "expected"), MATCHES.values(), ids=MATCHES)
def test_both_selectors_must_match(
    spec: dict[str, Any], pod: dict[str, str], namespace: dict[str, str], expected: bool
) -> None:
    matched = match([profile(**spec)], pod, namespace)
    assert (names(matched) == ["p"]) is expected
    assert matched.problems == ()


def test_an_invalid_selector_matches_nothing_and_is_reported() -> None:
    bad = profile("bad", selector={"matchExpressions": [{"key": "a", "operator": "Near", "values": []}]})
    matched = match([bad, profile("good")], {"a": "1"}, {})
    assert names(matched) == ["good"]
    ((refused, reason),) = matched.problems
    assert refused is bad and "Near" in reason


def test_an_unknown_namespace_matches_only_profiles_without_namespace_selector() -> None:
    selective = profile("with-selector", namespaceSelector=label(n="1"))
    matched = match([selective, profile("does-not"), profile("empty", namespaceSelector={})], {}, None)
    assert names(matched) == ["does-not", "empty"]
    assert [(each.metadata.name, reason.split(":")[0]) for each, reason in matched.problems] == [
        ("with-selector", "spec.namespaceSelector")
    ]


def test_reservations_have_no_namespace() -> None:
    assert names(match([profile(namespaceSelector=label(n="1"))], {}, None, namespaced=False)) == ["p"]


def test_profiles_are_sorted_by_the_bytes_of_their_names() -> None:
    assert names(match([profile(n) for n in ("b", "a-1", "a1", "a.1")], {}, {})) == ["a-1", "a.1", "a1", "b"]


@pytest.mark.parametrize(
    ("probability", "share"), [(None, 100), (0, 0), (37, 37), ("50%", 50), ("+50%", 50), ("0%", 0)]
)
def test_probability_is_a_number_or_percent(probability: int | str | None, share: int) -> None:
    assert percent(profile(probability=probability)) == share


@pytest.mark.parametrize("text", ["half", "50", "5.5%", "%", "-%", "+-5%", "٥%"])
def test_the_error_of_an_invalid_probability_names_the_profile(text: str) -> None:
    with pytest.raises(MutationError, match=r"ClusterColocationProfile p: spec\.probability"):
        percent(profile(probability=text))


@pytest.mark.parametrize(
    ("share", "drawn", "strict", "expected"),
    [(50, 70, False, True), (50, 30, False, False), (50, 70, True, True), (50, 30, True, False),
     (50, 50, False, True), (50, 50, True, False), (0, 0, False, True), (100, 99, False, False)],
)  # fmt: skip
def test_probability(share: int, drawn: int, strict: bool, expected: bool) -> None:
    assert skipped(share, lambda: drawn, strict_parity=strict) is expected


@given(st.integers(0, 100))
def test_a_profile_of_p_percent_applies_to_p_of_100_numbers(share: int) -> None:
    assert sum(not skipped(share, lambda n=n: n) for n in range(100)) == share  # type: ignore[misc]


def pod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": labels or {}, "annotations": annotations or {}}, "spec": spec}


APPLICATIONS = {
    "labels and annotations": (
        {"labels": {"a": "2", "b": "1"}, "annotations": {"n": "1"}},
        pod({"a": "1"}),
        pod({"a": "2", "b": "1"}, {"n": "1"}),
    ),
    "keys are copied": (
        {"labelKeysMapping": {"a": "b"}, "annotationKeysMapping": {"x": "y"}},
        pod({"a": "1"}, {"x": "2"}),
        pod({"a": "1", "b": "1"}, {"x": "2", "y": "2"}),
    ),
    "a missing key is copied as empty": ({"labelKeysMapping": {"no": "b"}}, pod(), pod({"b": ""})),
    "chains run in order of keys": (
        {"labelKeysMapping": {"b": "c", "a": "b"}},
        pod({"a": "1", "b": "2"}),
        pod({"a": "1", "b": "1", "c": "1"}),
    ),
    "suffix": ({"labelSuffixes": {"a": "-s", "no": "-s"}}, pod({"a": "v"}), pod({"a": "v-s"})),
    "suffix that is there": ({"labelSuffixes": {"a": "-s"}}, pod({"a": "v-s"}), pod({"a": "v-s"})),
    "class": (
        {"qosClass": "BE", "koordinatorPriority": 1111, "schedulerName": "koord-scheduler"},
        pod({"koordinator.sh/qosClass": "LS"}),
        pod(
            {"koordinator.sh/qosClass": "BE", "koordinator.sh/priority": "1111"}, None, schedulerName="koord-scheduler"
        ),
    ),
    "sub-priority 0 is set": ({"koordinatorPriority": 0}, pod(), pod({"koordinator.sh/priority": "0"})),
    "priority class": (
        {"priorityClassName": "koord-batch"},
        pod(priority=0, preemptionPolicy="PreemptLowerPriority"),
        pod(priority=5000, priorityClassName="koord-batch"),
    ),
    "patch merges lists by key": (
        {"patch": {"spec": {"containers": [{"name": "b", "env": [{"name": "X", "value": "1"}]}], "tolerations": []}}},
        pod(containers=[{"name": "a"}, {"name": "b", "env": [{"name": "Y"}], "odd": 1}], tolerations=[{"key": "k"}]),
        pod(
            containers=[{"name": "a"}, {"name": "b", "env": [{"name": "X", "value": "1"}, {"name": "Y"}], "odd": 1}],
            tolerations=[],
        ),
    ),
    "patch removes": ({"patch": {"metadata": {"labels": {"a": None}}}}, pod({"a": "1", "b": "1"}), pod({"b": "1"})),
}


@pytest.mark.parametrize(("spec", "before", "after"), APPLICATIONS.values(), ids=APPLICATIONS)
def test_changes_of_a_profile(spec: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    before = copy.deepcopy(before)
    result = apply_profile(before, profile(**spec), BATCH, pod_spec=before["spec"])
    assert result == after


def test_a_missing_priority_class_is_an_error_that_names_it() -> None:
    obj = pod()
    with pytest.raises(MutationError, match=r'Profile p: spec\.priorityClassName: PriorityClass "no" not found'):
        apply_profile(obj, profile(priorityClassName="no"), BATCH, pod_spec=obj["spec"])


def test_an_invalid_patch_is_an_error_that_names_the_profile() -> None:
    obj = pod(containers=[{"name": "a"}])
    with pytest.raises(MutationError, match=r"Profile p: spec\.patch: .*declared merge key: name"):
        apply_profile(obj, profile(patch={"spec": {"containers": [{"image": "x"}]}}), BATCH, pod_spec=obj["spec"])


def test_a_patch_is_not_shared_between_pods() -> None:
    mine = profile(patch={"spec": {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "k"}]}})
    first, second = pod(), pod()
    first = apply_profile(first, mine, {}, pod_spec=first["spec"])
    first["spec"]["nodeSelector"]["b"] = "2"
    first["spec"]["tolerations"].append({})
    second = apply_profile(second, mine, {}, pod_spec=second["spec"])
    assert second["spec"] == {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "k"}]}


keys = st.sampled_from("abc")
values = st.text("xyz-", max_size=3)


@given(
    labels=st.dictionaries(keys, values),
    spec=st.fixed_dictionaries(
        {},
        optional={
            "labels": st.dictionaries(keys, values),
            "annotations": st.dictionaries(keys, values),
            "labelKeysMapping": st.dictionaries(keys, st.sampled_from("stu")),
            "annotationKeysMapping": st.dictionaries(keys, st.sampled_from("stu")),
            "labelSuffixes": st.dictionaries(st.sampled_from("stuv"), values),
            "qosClass": st.sampled_from(["LS", "BE"]),
            "koordinatorPriority": st.integers(-5, 5),
            "schedulerName": st.just("s"),
            "patch": st.just({"spec": {"containers": [{"name": "c", "image": "i"}]}}),
        },
    ),
)
def test_a_second_application_changes_nothing(labels: dict[str, str], spec: dict[str, Any]) -> None:
    mine = profile(**spec)
    start = pod(labels, containers=[{"name": "d", "unknownField": {"x": 1}}])
    once = apply_profile(start, mine, BATCH, pod_spec=start["spec"])
    again = copy.deepcopy(once)
    again = apply_profile(again, mine, BATCH, pod_spec=again["spec"])
    assert again == once
    assert once["spec"]["containers"][-1] == {"name": "d", "unknownField": {"x": 1}}
