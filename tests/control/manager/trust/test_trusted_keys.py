"""Which users may set the pod keys that root code acts on (docs/security.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager import manifests
from control.manager.trust import rule
from control.manager.trust.keys import TENANT, TRUSTED
from control.manager.trust.users import ACCOUNTS, TrustedUsers
from control.manager.webhookserver.admission import RequestUser
from control.scheduler.process import manifests as scheduler_manifests
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.encoding.wire import convert

ROOT = Path(__file__).parents[4]
USERS = TrustedUsers.read([], [], "koordinator-system")
ACCOUNT = "system:serviceaccount:koordinator-system"
TENANT_USER = RequestUser(username="alice", groups=["system:authenticated"])
CONTROLLER = RequestUser(username="system:serviceaccount:kube-system:replicaset-controller")
SCHEDULER = RequestUser(username=f"{ACCOUNT}:koord-scheduler")
MANAGER = RequestUser(username=f"{ACCOUNT}:koord-manager")
ADMIN = RequestUser(username="admin", groups=["system:masters"])
QOS, STATUS = names.LABEL_QOS_CLASS, names.ANNOTATION_RESOURCE_STATUS
EXTENDED = names.ANNOTATION_EXTENDED_RESOURCE_SPEC
BATCH = {"kubernetes.io/batch-cpu": "500"}


def pod(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    requests: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    container = {"name": "c", "resources": {"requests": requests or {}}}
    metadata = {"name": "p", "labels": labels or {}, "annotations": annotations or {}}
    return convert({"metadata": metadata, "spec": {"containers": [container], **spec}}, Pod)


def refused(new: Pod, user: RequestUser, old: Pod | None = None, users: TrustedUsers = USERS) -> list[str]:
    return [change.key.key for change in rule.refused_changes(new, old, user, users)]


ATTACKS = {
    "CPUs": ({}, {STATUS: '{"cpuset":"0-7"}'}),
    "devices": ({}, {names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[{"minor":0}]}'}),
    "a reservation": ({}, {names.ANNOTATION_RESERVATION_ALLOCATED: "{}"}),
    "an OOM score below 0": ({}, {names.ANNOTATION_OOM_SCORE_ADJ: "-1000"}),
    "an OOM score of a container": ({}, {names.ANNOTATION_OOM_SCORE_ADJ_SPEC: '{"c":-1,"d":5}'}),
    "class SYSTEM": ({QOS: "SYSTEM"}, {}),
    "class LSE": ({QOS: "LSE"}, {}),
    "no cookie": ({names.LABEL_CORE_SCHED_POLICY: "none"}, {}),
    "no hooks": ({names.LABEL_SKIP_HOOK_SERVER: "true"}, {}),
    "resources of Reservations": ({names.LABEL_RESERVATION_IGNORED: "true"}, {}),
    "pods on its own resources": ({names.LABEL_OPERATING_MODE: "Reservation"}, {}),
    "no eviction": ({}, {names.ANNOTATION_EVICTION_POLICY: "x"}),
    "CPU identity": ({}, {names.ANNOTATION_CPU_QOS: '{"groupIdentity":2}'}),
    "a resctrl group": ({}, {names.ANNOTATION_RESCTRL: "{}"}),
    "batch resources that the pod does not request": (
        {QOS: "BE"}, {EXTENDED: '{"containers":{"c":{"requests":{"kubernetes.io/batch-cpu":"1e30"}}}}'},
    ),
    "malformed batch resources": ({QOS: "BE"}, {EXTENDED: "{"}),
}  # fmt: skip


@pytest.mark.parametrize(("labels", "annotations"), ATTACKS.values(), ids=ATTACKS)
def test_a_tenant_may_not_set_what_gives_more_than_the_pod_requests(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    attacked = next(iter({key: text for key, text in (labels | annotations).items() if text != "BE"}))
    info = pod(labels, annotations)
    for user in (TENANT_USER, CONTROLLER):
        assert refused(info, user) == [attacked]
        assert refused(info, user, pod()) == [attacked], "an update"
        assert refused(info, user, info) == [], "an update that does not change the key"
    assert refused(info, ADMIN) == refused(info, MANAGER) == []


ALLOWED = {
    "LSR": ({QOS: "LSR"}, {}, {"cpu": "2"}),
    "LS": ({QOS: "LS"}, {}, {}),
    "BE with the webhook's annotation": (
        {QOS: "BE"}, {EXTENDED: json.dumps({"containers": {"c": {"requests": BATCH}}})}, BATCH,
    ),
    "an empty annotation of batch resources": ({QOS: "BE"}, {EXTENDED: "{}"}, {}),
    "an unknown class": ({QOS: "what"}, {}, {}),
    "an earlier OOM victim": ({}, {names.ANNOTATION_OOM_SCORE_ADJ: "900"}, {}),
    "an OOM score that koordlet ignores": ({}, {names.ANNOTATION_OOM_SCORE_ADJ: "much"}, {}),
    "a cookie of its own": ({names.LABEL_CORE_SCHED_POLICY: "exclusive"}, {}, {}),
    "a CPU burst": ({}, {names.ANNOTATION_CPU_BURST: '{"policy":"auto"}'}, {}),
    "a request to the scheduler": ({}, {names.ANNOTATION_RESOURCE_SPEC: '{"preferredCPUBindPolicy":"FullPCPUs"}'}, {}),
    "a gang": ({}, {names.ANNOTATION_GANG_NAME: "g"}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("labels", "annotations", "requests"), ALLOWED.values(), ids=ALLOWED)
def test_what_templates_of_tenants_set_is_allowed(
    labels: dict[str, str], annotations: dict[str, str], requests: dict[str, str]
) -> None:
    info = pod(labels, annotations, requests)
    assert refused(info, TENANT_USER) == refused(info, CONTROLLER) == []


@pytest.mark.parametrize("hint", [names.ANNOTATION_SCHEDULING_HINT, names.ANNOTATION_SCHEDULING_HINT_OLD])
def test_a_hint_of_a_tenant_designates_nothing(hint: str) -> None:
    """A hint selects among nodes that the scheduler allows. Its extensions refer to annotations with designated CPUs
    and devices; a tenant may not write those."""
    text = '{"nodeNames":["n1"],"extensions":{"NodeNUMAResource":{},"DeviceShare":{}}}'
    assert refused(pod({}, {hint: text}), TENANT_USER) == []
    for key in (STATUS, names.ANNOTATION_DEVICE_ALLOCATED):
        assert refused(pod({}, {hint: text, key: "{}"}), TENANT_USER) == [key]


def test_removing_a_trusted_key_is_a_change() -> None:
    bound = pod(annotations={STATUS: '{"cpuset":"0-3"}'})
    assert refused(pod(), TENANT_USER, bound) == [STATUS]
    batch = pod({QOS: "BE"}, {EXTENDED: json.dumps({"containers": {"c": {"requests": BATCH}}})}, BATCH)
    assert refused(pod({QOS: "BE"}, {}, BATCH), TENANT_USER, batch) == [EXTENDED]
    assert refused(pod(), TENANT_USER, pod(annotations={names.ANNOTATION_OOM_SCORE_ADJ: "-5"})) == []


def test_the_scheduler_sets_results_of_scheduling_and_no_classes() -> None:
    results = {key.key: "1" for key in TRUSTED if key.kind == "annotation" and "scheduler" in key.setters}
    assert STATUS in results and len(results) >= 5
    assert refused(pod(annotations=results), SCHEDULER, pod()) == []
    assert refused(pod({QOS: "SYSTEM"}), SCHEDULER) == [QOS]
    other = RequestUser(username="system:serviceaccount:default:koord-scheduler")
    assert refused(pod(annotations=results), other, pod()) == sorted(results, key=list(results).index)


def test_a_node_reports_its_own_static_pods() -> None:
    static = {"kubernetes.io/config.mirror": "1", names.ANNOTATION_EVICTION_POLICY: "x"}
    node = RequestUser(username="system:node:n1", groups=["system:nodes"])
    assert refused(pod(annotations=static, nodeName="n1"), node) == []
    assert refused(pod(annotations=static, nodeName="n2"), node) == [names.ANNOTATION_EVICTION_POLICY]
    assert refused(pod(annotations=static, nodeName="n1"), TENANT_USER) == [names.ANNOTATION_EVICTION_POLICY]
    assert refused(pod(annotations={names.ANNOTATION_EVICTION_POLICY: "x"}, nodeName="n1"), node) != []


def test_flags_add_users_and_groups() -> None:
    users = TrustedUsers.read(["alice", ""], ["sre", ""], "other")
    info = pod({QOS: "SYSTEM"})
    assert refused(info, TENANT_USER, users=users) == []
    assert refused(info, RequestUser(username="bob", groups=["sre"]), users=users) == []
    assert refused(info, RequestUser(username=""), users=users) == [QOS]
    assert refused(info, RequestUser(username="", groups=[""]), users=users) == [QOS]
    assert refused(info, ADMIN, users=users) == []
    assert refused(pod(annotations={STATUS: "1"}), SCHEDULER, users=users) == [STATUS], "of another namespace"


def test_errors_name_the_key_and_who_may_set_it() -> None:
    changes = rule.refused_changes(pod({QOS: "SYSTEM"}, {STATUS: "x" * 1000}), None, TENANT_USER, USERS)
    status, qos = rule.errors(changes, TENANT_USER, USERS)
    assert status == (
        f'annotations.{STATUS}: Forbidden: user "alice" may not set it with this value, only {ACCOUNT}:koord-manager,'
        f" {ACCOUNT}:koord-scheduler and members of kubeadm:cluster-admins, system:masters may;"
        " other users may set nothing"
    )
    assert qos.endswith("other users may set every value but LSE and SYSTEM")
    long = RequestUser(username="u" * 10_000)
    assert all(len(text) < 600 for text in rule.errors(changes, long, USERS))


def profile(**spec: Any) -> ClusterColocationProfile:
    return convert({"metadata": {"name": "p"}, "spec": spec}, ClusterColocationProfile)


GRANTS = {
    "class": ({"qosClass": "SYSTEM"}, {QOS: "SYSTEM"}, {}),
    "label": ({"labels": {QOS: "LSE"}}, {QOS: "LSE"}, {}),
    "annotation": (
        {"annotations": {names.ANNOTATION_OOM_SCORE_ADJ: "-500"}}, {}, {names.ANNOTATION_OOM_SCORE_ADJ: "-500"},
    ),
    "patch": ({"patch": {"metadata": {"labels": {QOS: "LSE"}}}}, {QOS: "LSE"}, {}),
    "copied label": ({"labelKeysMapping": {"class": QOS}}, {"class": "LSE", QOS: "LSE"}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "labels", "annotations"), GRANTS.values(), ids=GRANTS)
def test_a_profile_grants_the_values_that_it_sets(
    spec: dict[str, Any], labels: dict[str, str], annotations: dict[str, str]
) -> None:
    info = pod(labels, annotations)
    changes = rule.refused_changes(info, None, TENANT_USER, USERS)
    assert changes
    assert rule.without_granted(changes, info, [profile(**spec)]) == []
    assert rule.without_granted(changes, info, [profile(labels={"other": "x"})]) == changes
    assert rule.without_granted(changes, info, [profile(labels={QOS: "BE"})]) == changes, "it grants another value"


def test_the_accounts_are_those_of_the_manifests() -> None:
    assert ACCOUNTS == {"manager": manifests.ACCOUNT, "scheduler": scheduler_manifests.ACCOUNT}


def test_every_key_is_in_one_table() -> None:
    keys = [key.key for key in (*TRUSTED, *TENANT)]  # type: ignore[attr-defined]
    assert len(keys) == len(set(keys))


NOT_ACTED_ON = {
    names.ANNOTATION_REPLACE_RESOURCES: "read by the scheduler only",
    names.ANNOTATION_NODE_RESERVATION: "of nodes",
    names.ANNOTATION_SYSTEM_QOS_RESOURCE: "of nodes",
}
ROOT_CODE = ("koordlet/api/annotations/pod.py", "koordlet/runtimehooks", "koordlet/qosmanager")


def test_every_key_that_koordlet_reads_is_in_a_table() -> None:
    files = [
        file for name in ROOT_CODE for file in ([ROOT / name] if name.endswith("py") else (ROOT / name).rglob("*.py"))
    ]
    used = {name for file in files for name in re.findall(r"\b(?:LABEL|ANNOTATION)_[A-Z_]+\b", file.read_text())}
    keys = {getattr(names, name) for name in used if hasattr(names, name)}
    listed = {key.key for key in (*TRUSTED, *TENANT)}  # type: ignore[attr-defined]
    assert len(keys) > 15
    assert keys - listed - NOT_ACTED_ON.keys() == set()


KEYS = st.sampled_from([key.key for key in TRUSTED])
TEXT = st.text(max_size=40) | st.sampled_from(["LSE", "none", "-1", '{"c":-1}', "{}", "1e30"])


@given(st.dictionaries(KEYS, TEXT, max_size=4), st.dictionaries(KEYS, TEXT, max_size=4))
def test_unchanged_keys_are_never_refused_and_an_admin_is_never_refused(
    before: dict[str, str], after: dict[str, str]
) -> None:
    kinds = {key.key: key.kind for key in TRUSTED}

    def made(values: dict[str, str]) -> Pod:
        return pod(*({k: v for k, v in values.items() if kinds[k] == kind} for kind in ("label", "annotation")))

    refused_keys = refused(made(after), TENANT_USER, made(before))
    assert all(before.get(key) != after.get(key) for key in refused_keys)
    assert refused(made(after), ADMIN, made(before)) == []
