"""The mutation of new pods and Reservations: worked examples of spec 04 §11 and §18, and laws."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from control.manager.webhooks.devices import normalise_gpus
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.podmutating import MutationInputs, mutate_pod
from control.manager.webhooks.profiles import Matched, match
from control.manager.webhooks.quotatree import require_nodes, tree_selector
from control.manager.webhooks.reservations import mutate_reservation
from control.manager.webhooks.translation import keep_extended_resources, translate_pod
from control.manager.webhookserver import jsonpatch
from control.standalone.patch import json_patch
from koordlet.api.core import PriorityClass
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.crs.quota import ElasticQuotaProfile
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import convert
from koordlet.api.meta import LabelSelector

SPEC_KEY = "node.koordinator.sh/extended-resource-spec"
CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
CLASSES: dict[str, Any] = {"koord-batch": convert({"metadata": {"name": "koord-batch"}, "value": 5000}, PriorityClass)}
OFF: frozenset[str] = frozenset()


def profile(name: str = "p", notes: dict[str, str] | None = None, **spec: Any) -> ClusterColocationProfile:
    return convert({"metadata": {"name": name, "annotations": notes or {}}, "spec": spec}, ClusterColocationProfile)


def known(
    *profiles: ClusterColocationProfile, labels: dict[str, str] | None = None, gates: frozenset[str] = OFF, **more: Any
) -> MutationInputs:
    return MutationInputs(
        gates=gates.__contains__,
        rand=lambda: 99,
        matched=match(profiles, labels or {}, {}),
        priority_classes=CLASSES,
        **more,
    )


def pod(
    *containers: dict[str, Any],
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    meta = {"name": "p", "namespace": "default"}
    if labels:
        meta["labels"] = labels  # type: ignore[assignment]
    if annotations:
        meta["annotations"] = annotations  # type: ignore[assignment]
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": list(containers), **spec}}


def container(
    name: str = "main", requests: dict[str, Any] | None = None, limits: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    resources = {k: v for k, v in (("limits", limits), ("requests", requests)) if v is not None}
    return {"name": name, "resources": resources, **more}


BE = {"koordinator.sh/qosClass": "BE"}


def test_the_end_to_end_example() -> None:
    selector = {"matchLabels": {"koordinator.sh/enable-colocation": "true"}}
    mine = profile(
        selector=selector,
        namespaceSelector=selector,
        qosClass="BE",
        priorityClassName="koord-batch",
        koordinatorPriority=1000,
        schedulerName="koord-scheduler",
        labels={"koordinator.sh/mutated": "true"},
        patch={"spec": {"terminationGracePeriodSeconds": 30}},
    )
    amounts = {"cpu": "1", "memory": "3456Mi"}
    before = pod(container("app", amounts, amounts), labels={"koordinator.sh/enable-colocation": "true"})
    enabled = {"koordinator.sh/enable-colocation": "true"}
    knowledge = MutationInputs(
        gates=OFF.__contains__, rand=lambda: 0, matched=match([mine], enabled, enabled), priority_classes=CLASSES
    )
    after = mutate_pod(before, "default", knowledge)
    batch = {CPU: "1k", MEMORY: "3456Mi"}
    assert after["metadata"]["labels"] == {
        **enabled,
        "koordinator.sh/qosClass": "BE",
        "koordinator.sh/priority": "1000",
        "koordinator.sh/mutated": "true",
    }
    assert after["spec"] == {
        "containers": [container("app", batch, batch)],
        "priority": 5000,
        "priorityClassName": "koord-batch",
        "schedulerName": "koord-scheduler",
        "terminationGracePeriodSeconds": 30,
    }
    amounts_text = '{"kubernetes.io/batch-cpu":"1k","kubernetes.io/batch-memory":"3456Mi"}'
    assert after["metadata"]["annotations"] == {
        SPEC_KEY: f'{{"containers":{{"app":{{"limits":{amounts_text},"requests":{amounts_text}}}}}}}'
    }


TRANSLATIONS = {
    "requests and limits": (
        BE, {"cpu": "500m", "memory": "1Gi"}, {"cpu": "500m", "memory": "1Gi"},
        {CPU: "500", MEMORY: "1Gi"}, {CPU: "500", MEMORY: "1Gi"},
    ),
    "limit becomes request": (BE, None, {"cpu": "2"}, {CPU: "2k"}, {CPU: "2k"}),
    "request alone stays alone": (BE, {"cpu": "1"}, None, {CPU: "1k"}, None),
    "numbers of JSON": (BE, {"cpu": 2, "memory": 1024}, None, {CPU: "2k", MEMORY: "1024"}, None),
    "others stay as written": (
        BE, {"cpu": "1", "ephemeral-storage": "1024Mi"}, None, {CPU: "1k", "ephemeral-storage": "1024Mi"}, None,
    ),
    "mid": (
        {"koordinator.sh/priority-class": "koord-mid"}, {"cpu": "1"}, None, {"kubernetes.io/mid-cpu": "1k"}, None,
    ),
    "free has no resources": (
        {"koordinator.sh/priority-class": "koord-free"}, {"cpu": "1"}, None, {"cpu": "1"}, None,
    ),
    "prod": ({"koordinator.sh/qosClass": "LS"}, {"cpu": "1"}, None, {"cpu": "1"}, None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "requests", "limits", "new_requests", "new_limits"), TRANSLATIONS.values(), ids=TRANSLATIONS
)
def test_resources_move_to_the_class(
    labels: dict[str, str],
    requests: dict[str, Any] | None,
    limits: dict[str, str] | None,
    new_requests: dict[str, str],
    new_limits: dict[str, str] | None,
) -> None:
    subject = pod(container(requests=requests, limits=limits), labels=labels)
    translate_pod(subject)
    assert subject["spec"]["containers"] == [container(requests=new_requests, limits=new_limits)]


def test_init_containers_and_overhead_move_too() -> None:
    subject = pod(
        container(),
        labels=BE,
        initContainers=[container("init", {"cpu": "100m"})],
        overhead={"cpu": "250m", "memory": "1Gi"},
    )
    translate_pod(subject)
    assert subject["spec"]["initContainers"] == [container("init", {CPU: "100"})]
    assert subject["spec"]["overhead"] == {CPU: "250", MEMORY: "1Gi"}


SKIPPED = {
    "no profile matched": (known(), {"cpu": "1"}),
    "skipped by probability, translated all the same": (known(profile(probability=0, qosClass="LS")), {CPU: "1k"}),
    "annotation on a skipped profile": (
        known(profile(probability=0, notes={"config.koordinator.sh/skip-update-resources": ""})), {"cpu": "1"},
    ),
    "gate": (known(profile(), gates=frozenset({"ColocationProfileSkipMutatingResources"})), {"cpu": "1"}),
}  # fmt: skip


@pytest.mark.parametrize(("knowledge", "expected"), SKIPPED.values(), ids=SKIPPED)
def test_when_resources_are_translated(knowledge: MutationInputs, expected: dict[str, str]) -> None:
    after = mutate_pod(pod(container(requests={"cpu": "1"}), labels=BE), "default", knowledge)
    assert after["spec"]["containers"][0]["resources"]["requests"] == expected


def test_later_profiles_overwrite_earlier_ones_and_make_no_new_matches() -> None:
    first = profile("a", labels={"x": "1", "match": "me"})
    second = profile("b", labels={"x": "2"})
    third = profile("c", selector={"matchLabels": {"match": "me"}}, labels={"x": "3"})
    after = mutate_pod(pod(container()), "default", known(third, second, first))
    assert after["metadata"]["labels"] == {"x": "2", "match": "me"}


def test_a_patch_that_breaks_the_pod_is_an_error_that_names_the_profile() -> None:
    with pytest.raises(MutationError, match=r"Profile p: the patch produces an invalid pod: .*containers"):
        mutate_pod(pod(container()), "default", known(profile(patch={"spec": {"containers": "none"}})))


ANNOTATIONS = {
    "made": (None, {CPU: "1k"}, '{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"1k"}}}}'),
    "same in other words": (
        '{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"1000"}}}}',
        {CPU: "1k"},
        '{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"1000"}}}}',
    ),
    "no longer needed": ('{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"1"}}}}', {"cpu": "1"}, "{}"),
    "not needed": (None, {"cpu": "1"}, None),
}


@pytest.mark.parametrize(("old", "requests", "new"), ANNOTATIONS.values(), ids=ANNOTATIONS)
def test_the_annotation_for_the_node(old: str | None, requests: dict[str, str], new: str | None) -> None:
    subject = pod(container(requests=requests), annotations={SPEC_KEY: old} if old else None)
    keep_extended_resources(subject)
    assert subject["metadata"].get("annotations", {}).get(SPEC_KEY) == new


def test_a_malformed_annotation_is_an_error_that_names_it() -> None:
    with pytest.raises(MutationError, match=SPEC_KEY):
        keep_extended_resources(pod(container(), annotations={SPEC_KEY: "{"}))


GPU = "koordinator.sh/"
DEVICES = {
    "share of one": ({"gpu-core": "100", "gpu-memory": "4000", "gpu-memory-ratio": "50"}, {"gpu.shared": "1"}),
    "two": ({"gpu-core": "100", "gpu-memory": "8000", "gpu-memory-ratio": "200"}, {"gpu.shared": "2"}),
    "core alone": ({"gpu-core": "300", "gpu-memory": "8000"}, {"gpu.shared": "3"}),
    "shared given": ({"gpu-core": "100", "gpu.shared": "4"}, {}),
    "gpu 200": ({"gpu": "200"}, {"gpu": None, "gpu-core": "200", "gpu-memory-ratio": "200", "gpu.shared": "2"}),
    "gpu 150": ({"gpu": "150"}, {"gpu": None, "gpu-core": "150", "gpu-memory-ratio": "150", "gpu.shared": "1"}),
    "none": ({}, {}),
}


@pytest.mark.parametrize(("amounts", "change"), DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("limits_missing", [False, True])
def test_gpu_requests_are_normalised(
    amounts: dict[str, str], change: dict[str, str | None], limits_missing: bool
) -> None:
    before = {GPU + k: v for k, v in amounts.items()}
    expected = {k: v for k, v in {**before, **{GPU + k: v for k, v in change.items()}}.items() if v is not None}
    subject = pod(container(requests=dict(before), limits=None if limits_missing else dict(before)))
    normalise_gpus(subject)
    resources = subject["spec"]["containers"][0]["resources"]
    assert resources["requests"] == expected
    if not limits_missing:
        assert resources["limits"] == expected
    again = copy.deepcopy(subject)
    normalise_gpus(again)
    assert again == subject


def test_normalisation_of_gpus_can_be_disabled() -> None:
    subject = pod(container(requests={GPU + "gpu": "100"}))
    assert mutate_pod(subject, "default", known(gates=frozenset({"DisableDeviceResourceSpec"}))) == subject


def quota_profile(name: str, tree: str, **selector: Any) -> ElasticQuotaProfile:
    return convert(
        {
            "metadata": {"name": name, "labels": {"quota.scheduling.koordinator.sh/tree-id": tree}},
            "spec": {"quotaName": "q", "nodeSelector": selector},
        },
        ElasticQuotaProfile,
    )


class Trees:
    def tree_of(self, quota: str, namespace: str) -> str:
        return {"team": "t1", "default": "t2"}.get(quota) or ("t3" if namespace == "bound" else "")


def terms(subject: dict[str, Any]) -> list[dict[str, Any]] | None:
    affinity = subject["spec"].get("affinity", {}).get("nodeAffinity", {})
    result: list[dict[str, Any]] | None = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
        "nodeSelectorTerms"
    )
    return result


def IN(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


PROFILES = [
    quota_profile("z", "t1", matchLabels={"pool": "wrong"}),
    quota_profile(
        "a", "t1", matchLabels={"zone": "1", "pool": "x"}, matchExpressions=[{"key": "gpu", "operator": "Exists"}]
    ),
    quota_profile("b", "t3", matchLabels={"pool": "b"}),
]
WANTED = [IN("pool", "x"), IN("zone", "1"), {"key": "gpu", "operator": "Exists"}]
TREES = {
    "by label": ({"quota.scheduling.koordinator.sh/name": "team"}, "default", [WANTED]),
    "by namespace": ({}, "bound", [[IN("pool", "b")]]),
    "tree without profile": ({}, "default", None),
    "no tree": ({}, "elsewhere", None),
}


@pytest.mark.parametrize(("labels", "namespace", "expected"), TREES.values(), ids=TREES)
def test_pods_of_a_tree_stay_on_its_nodes(
    labels: dict[str, str], namespace: str, expected: list[list[dict[str, Any]]] | None
) -> None:
    knowledge = known(gates=frozenset({"MultiQuotaTree"}), trees=Trees(), quota_profiles=PROFILES)
    after = mutate_pod(pod(container(), labels=labels), namespace, knowledge)
    requirements = terms(after)
    assert (None if requirements is None else [term["matchExpressions"] for term in requirements]) == expected


def test_every_existing_term_is_restricted_to_the_tree() -> None:
    selector = tree_selector(PROFILES, "t3")
    assert selector is not None
    held = {"nodeSelectorTerms": [{"matchExpressions": [IN("a", "1")]}, {"matchFields": [IN("metadata.name", "n")]}]}
    subject = pod(container(), affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": held}})
    require_nodes(subject, selector)
    require_nodes(subject, selector)
    assert terms(subject) == [
        {"matchExpressions": [IN("a", "1"), IN("pool", "b")]},
        {"matchFields": [IN("metadata.name", "n")], "matchExpressions": [IN("pool", "b")]},
    ]


def test_an_empty_tree_selector_adds_nothing() -> None:
    subject = pod(container())
    require_nodes(subject, LabelSelector())
    assert subject == pod(container())


def test_profiles_change_a_reservation_and_its_template() -> None:
    mine = profile(
        selector={"matchLabels": {"a": "1"}},
        namespaceSelector={"matchLabels": {"never": "asked"}},
        labels={"b": "2"},
        qosClass="BE",
        priorityClassName="koord-batch",
        schedulerName="koord-scheduler",
        patch={"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}, "ttl": "1h"}},
    )
    before = {
        "metadata": {"name": "r", "labels": {"a": "1"}},
        "spec": {
            "owners": [{"object": {"name": "x"}}],
            "template": {"spec": {"containers": [container("c", {"cpu": "1"}, image="old", odd=1)]}},
        },
    }
    knowledge = known()
    matched = match([mine], {"a": "1"}, None, namespaced=False)
    after = mutate_reservation(before, MutationInputs(knowledge.gates, knowledge.rand, matched, CLASSES))
    assert after["metadata"]["labels"] == {"a": "1", "b": "2", "koordinator.sh/qosClass": "BE"}
    assert after["spec"] == {
        "owners": [{"object": {"name": "x"}}],
        "ttl": "1h",
        "template": {
            "spec": {
                "containers": [container("c", {"cpu": "1"}, image="new", odd=1)],
                "schedulerName": "koord-scheduler",
                "priorityClassName": "koord-batch",
                "priority": 5000,
            }
        },
    }


def test_profiles_of_a_reservation_without_template() -> None:
    matched = Matched((profile(labels={"b": "2"}, schedulerName="s", priorityClassName="koord-batch"),))
    before = {"metadata": {"name": "r"}, "spec": {"owners": []}}
    after = mutate_reservation(before, MutationInputs(OFF.__contains__, lambda: 0, matched, CLASSES))
    assert after == {"metadata": {"name": "r", "labels": {"b": "2"}}, "spec": {"owners": []}}


# --- laws ----------------------------------------------------------------------------------------------

amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", GPU + "gpu", GPU + "gpu-core", GPU + "gpu-memory-ratio"]),
    st.sampled_from(["0", "1", "100", "150", "200", "1500m", "2Gi"]),
    max_size=4,
)
unknown = st.dictionaries(st.sampled_from(["x-field", "y-field"]), st.sampled_from([None, 1, "s", {"deep": [1]}, []]))  # type: ignore[var-annotated]


@st.composite
def pods(draw: DrawFn) -> dict[str, Any]:
    containers = [
        {"name": f"c{i}", "resources": {"requests": draw(amounts), "limits": draw(amounts)}, **draw(unknown)}
        for i in range(draw(st.integers(1, 3)))
    ]
    labels = draw(
        st.dictionaries(st.sampled_from(["a", "b", "koordinator.sh/qosClass"]), st.sampled_from(["1", "BE", "LS"]))
    )
    subject = pod(*containers, labels=labels, **draw(unknown))  # type: ignore[arg-type]
    return {**subject, **draw(unknown)}


PATCH = {"spec": {"containers": [{"name": "c0", "image": "i"}], "nodeSelector": {"n": "1"}}}
profiles = st.lists(
    st.builds(
        profile,
        name=st.sampled_from(["p", "q", "r"]),
        qosClass=st.sampled_from(["", "BE", "LS"]),
        labels=st.dictionaries(st.sampled_from("wx"), st.sampled_from("12")),  # not what another one copies
        labelKeysMapping=st.dictionaries(st.sampled_from("ab"), st.sampled_from("cd")),
        priorityClassName=st.sampled_from(["", "koord-batch"]),
        patch=st.sampled_from(
            [None, {"spec": {"containers": [{"name": "c0", "image": "i"}], "nodeSelector": {"n": "1"}}}]
        ),
    ),
    max_size=2,
    unique_by=lambda each: each.metadata.name,
)


@given(pods(), profiles)
def test_laws_of_mutation(subject: dict[str, Any], some_profiles: list[ClusterColocationProfile]) -> None:
    original = copy.deepcopy(subject)
    knowledge = known(*some_profiles, labels=subject["metadata"].get("labels"))
    once = mutate_pod(subject, "default", knowledge)
    assert subject == original, "the argument is not changed"
    operations = json.loads(json.dumps(jsonpatch.diff(subject, once)))
    assert json_patch.apply(original, operations) == once, "the patch on the original gives the mutated object"
    twice = mutate_pod(once, "default", MutationInputs(knowledge.gates, knowledge.rand, knowledge.matched, CLASSES))
    assert twice == once, "mutating twice is mutating once"
    for where in (lambda p: p, lambda p: p["spec"], lambda p: p["spec"]["containers"][0]):
        for field in ("x-field", "y-field"):
            assert where(once).get(field, "absent") == where(subject).get(field, "absent"), "unknown fields survive"  # type: ignore[no-untyped-call]


@given(pods())
def test_translation_preserves_amounts(subject: dict[str, Any]) -> None:
    subject["metadata"]["labels"] = dict(BE)
    before = copy.deepcopy(subject)
    translate_pod(subject)
    for old, new in zip(before["spec"]["containers"], subject["spec"]["containers"], strict=True):
        for kind in ("requests", "limits"):
            was, now = old["resources"][kind], new["resources"][kind]
            assert "cpu" not in now and "memory" not in now
            if "cpu" in was:
                assert Quantity(now[CPU]).value() == Quantity(was["cpu"]).milli_value()
            if "memory" in was:
                assert Quantity(now[MEMORY]) == Quantity(was["memory"])
