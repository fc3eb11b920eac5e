"""Admission without webhooks: the fields it sets and the pods it rejects."""

from collections.abc import Iterator
from typing import Any

import pytest

from control.standalone.admission import AdmissionChain, pods
from control.standalone.errors import StatusError
from control.standalone.kinds import Kinds
from control.standalone.policyinterfaces import AdmissionAttributes, ApiUser
from control.standalone.store import ObjectStore
from tests.present import present

KINDS = Kinds()
USER = ApiUser("alice", ("system:masters",))
CLASSES = "scheduling.k8s.io/priorityclasses"


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    store = ObjectStore(None)
    put(store, "/namespaces", "ns")
    put(store, "/serviceaccounts", "default", "ns")
    yield store
    store.close()


def put(store: ObjectStore, key: str, name: str, ns: str | None = None, **fields: Any) -> None:
    metadata = {"name": name, **({"namespace": ns} if ns else {}), **fields.pop("metadata", {})}
    store.put(key, ns, name, {"metadata": metadata, **fields}, expect=None)
    store.commit()


def request(obj: dict[str, Any] | None = None, key: str = "/pods", ns: str = "ns", **more: Any) -> AdmissionAttributes:
    obj = obj if obj is not None else {"metadata": {"name": "p"}, "spec": {}}
    return AdmissionAttributes("CREATE", present(KINDS.get(key)), "v1", ns, "p", obj, None, USER, **more)


async def admit(store: ObjectStore, **spec: Any) -> dict[str, Any]:
    admission_request = request({"metadata": {"name": "p"}, "spec": spec})
    chain = AdmissionChain(store)
    await chain.mutate(admission_request)
    await chain.validate(admission_request)
    await chain.close()
    assert admission_request.obj is not None
    result: dict[str, Any] = admission_request.obj["spec"]
    return result


async def test_a_plain_pod(store: ObjectStore) -> None:
    spec = await admit(store)
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    tolerated = {(t["key"], t["effect"], t["operator"], t["tolerationSeconds"]) for t in spec["tolerations"]}
    assert tolerated == {
        ("node.kubernetes.io/not-ready", "NoExecute", "Exists", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", "Exists", 300),
    }


async def test_tolerations_of_the_pod_win(store: ObjectStore) -> None:
    mine = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    spec = await admit(store, tolerations=[mine])
    assert [t["tolerationSeconds"] for t in spec["tolerations"]] == [5, 300]
    assert (await admit(store, tolerations=[{"operator": "Exists"}]))["tolerations"] == [{"operator": "Exists"}]


async def test_priority_comes_from_the_class(store: ObjectStore) -> None:
    put(store, CLASSES, "koord-batch", value=5000, preemptionPolicy="Never")
    spec = await admit(store, priorityClassName="koord-batch")
    assert (spec["priority"], spec["preemptionPolicy"]) == (5000, "Never")
    assert (await admit(store, priorityClassName="system-node-critical"))["priority"] == 2000001000
    put(store, CLASSES, "usual", value=7, globalDefault=True)
    spec = await admit(store)
    assert (spec["priority"], spec["priorityClassName"]) == (7, "usual")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"priorityClassName": "nope"}, 'pods "p" is forbidden: no PriorityClass with name nope was found'),
        ({"priority": 5}, r"integer value of priority \(5\) must not be provided in pod spec"),
        ({"preemptionPolicy": "Never"}, r"string value of PreemptionPolicy \(Never\) must not be provided"),
        ({"serviceAccountName": "x"}, 'error looking up service account ns/x: serviceaccount "x" not found'),
    ],
)
async def test_pods_are_rejected_with_a_reason(store: ObjectStore, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(StatusError, match=message) as caught:
        await admit(store, **spec)
    assert (caught.value.code, caught.value.reason) == (403, "Forbidden")


async def test_admission_waits_for_the_default_account(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "/namespaces", "new")
    sleeps = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 3:
            put(store, "/serviceaccounts", "default", "new", imagePullSecrets=[{"name": "s"}])

    monkeypatch.setattr(pods.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    admission_request = request(ns="new")
    await AdmissionChain(store).mutate(admission_request)
    assert len(sleeps) == 3
    assert admission_request.obj is not None
    assert present(admission_request.obj["spec"])["imagePullSecrets"] == [{"name": "s"}]


MIRROR = {"kubernetes.io/config.mirror": "x"}


async def test_a_mirror_pod_gets_no_service_account_but_all_other_checks(store: ObjectStore) -> None:
    mirror: dict[str, Any] = {"metadata": {"name": "p", "annotations": MIRROR}, "spec": {}}
    await AdmissionChain(store).mutate(request(mirror))
    assert "serviceAccountName" not in mirror["spec"]
    assert mirror["spec"]["priority"] == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"priority": 2_000_001_000}, "the integer value of priority"),
        ({"priorityClassName": "missing"}, "no PriorityClass with name missing was found"),
        ({"serviceAccountName": "other"}, "a mirror pod may not reference service accounts"),
        ({"volumes": [{"name": "s", "secret": {"secretName": "s"}}]}, "a mirror pod may not reference secrets"),
    ],
)
async def test_the_mirror_annotation_does_not_skip_checks(
    store: ObjectStore, spec: dict[str, Any], message: str
) -> None:
    mirror = {"metadata": {"name": "p", "annotations": MIRROR}, "spec": spec}
    with pytest.raises(StatusError, match=message) as caught:
        await AdmissionChain(store).mutate(request(mirror))
    assert caught.value.code == 403


async def test_other_kinds_are_not_changed(store: ObjectStore) -> None:
    config = {"metadata": {"name": "c"}}
    await AdmissionChain(store).mutate(request(config, "/configmaps"))
    assert config == {"metadata": {"name": "c"}}


async def test_namespaces_must_exist_and_not_be_terminating(store: ObjectStore) -> None:
    chain = AdmissionChain(store)
    with pytest.raises(StatusError) as caught:
        await chain.mutate(request(ns="nowhere"))
    assert (caught.value.code, caught.value.message) == (404, 'namespaces "nowhere" not found')
    put(store, "/namespaces", "going", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    with pytest.raises(StatusError) as caught:
        await chain.mutate(request(ns="going"))
    error = caught.value
    why = "unable to create new content in namespace going because it is being terminated"
    assert (error.code, error.message) == (403, f'pods "p" is forbidden: {why}')
    assert error.details["causes"][0]["reason"] == "NamespaceTerminating"
