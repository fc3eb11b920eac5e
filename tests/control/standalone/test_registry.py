"""The generic rules of writes, with the registry alone: metadata, conflicts, finalizers, graceful deletion."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from control.standalone.deletion import DeletionOptions
from control.standalone.errors import StatusError
from control.standalone.kinds import Kinds
from control.standalone.policyinterfaces import AdmissionAttributes
from control.standalone.registry import ObjectRegistry, WriteOptions
from control.standalone.store import ObjectStore
from tests.control.standalone.openpolicies import OpenAdmission, OpenSchemas
from tests.fakeclock import SetTime

CM, POD, NS, DEPLOY, SECRET = "/configmaps", "/pods", "/namespaces", "apps/deployments", "/secrets"


@pytest.fixture
def clock() -> SetTime:
    return SetTime(1_700_000_000.0)


@pytest.fixture
def registry(clock: SetTime) -> ObjectRegistry:
    return ObjectRegistry(ObjectStore(None), Kinds(), OpenSchemas(), OpenAdmission(), now=clock)


def cm(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}, "data": {"k": "v"}}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


async def refused(awaitable: Any, reason: str, text: str = "") -> StatusError:
    with pytest.raises(StatusError) as caught:
        await awaitable
    assert caught.value.reason == reason, caught.value.message
    assert text in caught.value.message
    return caught.value


async def test_create_fills_system_metadata(registry: ObjectRegistry) -> None:
    created = await registry.create(DEPLOY, "default", {"metadata": {"name": "d"}, "spec": {}, "status": {"x": 1}})
    meta = created["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", meta["uid"])
    assert meta["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert (meta["generation"], meta["resourceVersion"], meta["namespace"]) == (1, "1", "default")
    assert "status" not in created
    assert list(created)[:2] == ["apiVersion", "kind"]


async def test_generate_name_and_its_limits(registry: ObjectRegistry) -> None:
    created = await registry.create(CM, "default", {"metadata": {"generateName": "x" * 70}})
    assert re.fullmatch(r"x{58}[a-z0-9]{5}", created["metadata"]["name"])
    await refused(registry.create(CM, "default", {}), "Invalid", "name or generateName is required")


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        pytest.param(
            {"metadata": {"name": "A_b"}}, "Invalid", "a lowercase RFC 1123 subdomain must consist of", id="name"
        ),
        pytest.param(
            {"metadata": {"name": "a", "labels": {"k": "v v"}}}, "Invalid", "a valid label must be", id="label"
        ),
        pytest.param({"metadata": {"name": "a", "labels": {"k/": "v"}}}, "Invalid", "name part must", id="label-key"),
        pytest.param(
            {"metadata": {"name": "a", "labels": {"k": 1}}}, "BadRequest", "metadata.labels[k]", id="label-type"
        ),
        pytest.param({"metadata": {"name": "a", "labels": []}}, "BadRequest", "map of strings", id="labels-type"),
        pytest.param({"metadata": []}, "BadRequest", "metadata must be an object", id="metadata"),
        pytest.param({"metadata": {"name": 3}}, "BadRequest", "metadata.name must be a string", id="name-type"),
        pytest.param(
            {"metadata": {"name": "a", "namespace": "b"}}, "BadRequest", "does not match the namespace", id="ns"
        ),
        pytest.param(
            {"kind": "Pod", "metadata": {"name": "a"}}, "BadRequest", "cannot be handled as a ConfigMap", id="kind"
        ),
        pytest.param(
            {"apiVersion": "apps/v1", "metadata": {"name": "a"}}, "BadRequest", 'for version "apps/v1"', id="gv"
        ),
        pytest.param({"metadata": {"name": "a", "resourceVersion": "1"}}, "", "should not be set", id="rv"),
    ],
)
async def test_invalid_creates_are_rejected(
    registry: ObjectRegistry, body: dict[str, Any], reason: str, text: str
) -> None:
    await refused(registry.create(CM, "default", body), reason, text)
    assert registry.list(CM) == []


async def test_create_twice(registry: ObjectRegistry) -> None:
    await registry.create(CM, "default", cm())
    error = await refused(registry.create(CM, "default", cm()), "AlreadyExists", 'configmaps "a" already exists')
    assert error.to_status()["details"] == {"name": "a", "kind": "configmaps"}


async def test_update_conflict_and_precondition_wording(registry: ObjectRegistry) -> None:
    created = await registry.create(DEPLOY, "default", {"metadata": {"name": "d"}, "spec": {"replicas": 1}})
    stale = {**created, "spec": {"replicas": 2}}
    await registry.update(DEPLOY, "default", "d", {**created, "spec": {"replicas": 3}})
    await refused(
        registry.update(DEPLOY, "default", "d", stale),
        "Conflict",
        'Operation cannot be fulfilled on deployments.apps "d": the object has been modified; please apply your '
        "changes to the latest version and try again",
    )
    other = {"metadata": {"name": "d", "uid": "x"}, "spec": {}}
    await refused(
        registry.update(DEPLOY, "default", "d", other), "Conflict", "Precondition failed: UID in precondition: x"
    )
    unconditional = await registry.update(DEPLOY, "default", "d", {"metadata": {"name": "d"}, "spec": {"replicas": 5}})
    assert unconditional["metadata"]["uid"] == created["metadata"]["uid"]
    await refused(
        registry.update(DEPLOY, "default", "e", {"metadata": {"name": "e"}}),
        "NotFound",
        'deployments.apps "e" not found',
    )


async def test_generation_counts_spec_changes_and_status_is_isolated(registry: ObjectRegistry) -> None:
    created = await registry.create(DEPLOY, "default", {"metadata": {"name": "d"}, "spec": {"replicas": 1}})
    status = WriteOptions(subresource="status")
    created = await registry.update(
        DEPLOY, "default", "d", {**created, "spec": {"replicas": 9}, "status": {"replicas": 1}}, options=status
    )
    assert (created["spec"], created["status"], created["metadata"]["generation"]) == (
        {"replicas": 1},
        {"replicas": 1},
        1,
    )
    created = await registry.update(
        DEPLOY, "default", "d", {**created, "spec": {"replicas": 2}, "status": {"replicas": 7}}
    )
    assert (created["spec"], created["status"], created["metadata"]["generation"]) == (
        {"replicas": 2},
        {"replicas": 1},
        2,
    )
    labelled = {**created, "metadata": {**created["metadata"], "labels": {"a": "b"}}}
    assert (await registry.update(DEPLOY, "default", "d", labelled))["metadata"]["generation"] == 2


async def test_a_write_without_changes_is_not_stored(registry: ObjectRegistry) -> None:
    created = await registry.create(CM, "default", cm())
    again = await registry.update(CM, "default", "a", created)
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert registry.store.revision == 1


async def test_clients_cannot_write_system_fields(registry: ObjectRegistry) -> None:
    created = await registry.create(CM, "default", cm())
    forged = cm(creationTimestamp="2000-01-01T00:00:00Z", deletionTimestamp="2000-01-01T00:00:00Z", generation=7)
    forged["data"] = {"new": "x"}
    after = await registry.update(CM, "default", "a", forged)
    assert after["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]
    assert "deletionTimestamp" not in after["metadata"]
    assert "generation" not in after["metadata"]


async def test_finalizers_keep_an_object(registry: ObjectRegistry) -> None:
    created = await registry.create(CM, "default", cm(finalizers=["x.io/y"]))
    obj, gone = await registry.delete(CM, "default", "a")
    assert not gone
    assert obj["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:20Z"
    more = {**obj, "metadata": {**obj["metadata"], "finalizers": ["x.io/y", "x.io/z"]}}
    await refused(registry.update(CM, "default", "a", more), "Invalid", "no new finalizers can be added")
    _, gone = await registry.delete(CM, "default", "a")
    assert not gone
    free = {**obj, "metadata": {**obj["metadata"], "finalizers": []}}
    await registry.update(CM, "default", "a", free)
    assert registry.find(CM, "default", "a") is None
    assert [e.type for e in registry.store.since(CM, int(created["metadata"]["resourceVersion"]))] == [
        "MODIFIED",
        "DELETED",
    ]


@pytest.mark.parametrize(
    ("policy", "finalizers"), [("Orphan", ["orphan"]), ("Foreground", ["foregroundDeletion"]), ("Background", None)]
)
async def test_propagation_policies_are_finalizers(
    registry: ObjectRegistry, policy: str, finalizers: list[str] | None
) -> None:
    await registry.create(CM, "default", cm())
    obj, gone = await registry.delete(CM, "default", "a", options=DeletionOptions(propagation_policy=policy))
    assert gone is (finalizers is None)
    assert obj["metadata"].get("finalizers") == finalizers


@pytest.mark.parametrize(
    ("precondition", "text"),
    [({"uid": "x"}, "UID in precondition: x"), ({"resource_version": "99"}, "ResourceVersion in precondition: 99")],
)
async def test_delete_preconditions(registry: ObjectRegistry, precondition: dict[str, Any], text: str) -> None:
    await registry.create(CM, "default", cm())
    await refused(registry.delete(CM, "default", "a", options=DeletionOptions(**precondition)), "Conflict", text)
    assert registry.find(CM, "default", "a") is not None


async def test_unbound_and_finished_pods_are_removed_at_once(registry: ObjectRegistry) -> None:
    await registry.create(POD, "default", pod())
    _, gone = await registry.delete(POD, "default", "p")
    assert gone
    done = await registry.create(POD, "default", pod(nodeName="n"))
    done["status"]["phase"] = "Succeeded"
    await registry.update(POD, "default", "p", done, options=WriteOptions(subresource="status"))
    _, gone = await registry.delete(POD, "default", "p")
    assert gone


async def test_a_bound_pod_waits_for_its_kubelet(registry: ObjectRegistry, clock: SetTime) -> None:
    await registry.create(POD, "default", pod(nodeName="n", terminationGracePeriodSeconds=20))
    obj, gone = await registry.delete(POD, "default", "p")
    assert not gone
    assert obj["metadata"]["deletionGracePeriodSeconds"] == 20
    assert obj["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:40Z"
    clock.now += 3
    obj, gone = await registry.delete(POD, "default", "p")  # a second delete changes nothing
    assert (gone, obj["metadata"]["deletionTimestamp"]) == (False, "2023-11-14T22:13:40Z")
    obj, gone = await registry.delete(POD, "default", "p", options=DeletionOptions(grace_period_seconds=60))
    assert obj["metadata"]["deletionGracePeriodSeconds"] == 20  # a grace period can only be shortened
    obj, _ = await registry.delete(POD, "default", "p", options=DeletionOptions(grace_period_seconds=5))
    assert obj["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:25Z"
    _, gone = await registry.delete(POD, "default", "p", options=DeletionOptions(grace_period_seconds=0))
    assert gone
    assert registry.store.since(POD, 0)[-1].type == "DELETED"


async def test_a_namespace_waits_for_its_finalizer(registry: ObjectRegistry) -> None:
    created = await registry.create(NS, None, {"metadata": {"name": "x"}})
    assert (created["spec"], created["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    obj, gone = await registry.delete(NS, None, "x")
    assert (gone, obj["status"]["phase"]) == (False, "Terminating")
    await refused(registry.delete(NS, None, "x"), "Conflict", "The system is ensuring all content is removed")
    kept = await registry.update(NS, None, "x", {**obj, "spec": {}})
    assert kept["spec"] == {"finalizers": ["kubernetes"]}
    await registry.update(
        NS, None, "x", {**kept, "spec": {"finalizers": []}}, options=WriteOptions(subresource="finalize")
    )
    assert registry.find(NS, None, "x") is None
    await registry.create(NS, None, {"metadata": {"name": "default"}})
    await refused(registry.delete(NS, None, "default"), "Forbidden", "this namespace may not be deleted")


async def test_dry_run_writes_nothing(registry: ObjectRegistry) -> None:
    dry = WriteOptions(dry_run=True)
    created = await registry.create(CM, "default", cm(), options=dry)
    assert created["metadata"]["uid"]
    assert registry.list(CM) == []
    created = await registry.create(CM, "default", cm())
    changed = await registry.update(CM, "default", "a", {**created, "data": {"k": "2"}}, options=dry)
    assert changed["data"] == {"k": "2"}
    await registry.delete(CM, "default", "a", options=DeletionOptions(dry_run=True))
    assert registry.get(CM, "default", "a")["data"] == {"k": "v"}
    assert registry.store.revision == 1


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "0m", "memory": "0"}}, "BestEffort"),
        ({"requests": {"kubernetes.io/batch-cpu": "1000"}}, "BestEffort"),
        ({"requests": {"cpu": "100m"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0", "memory": "1Gi"}}, "Burstable"),
        ({"limits": {"cpu": "x"}}, "BestEffort"),
    ],
)
async def test_qos_class_is_that_of_amounts_after_admission(
    registry: ObjectRegistry, resources: dict[str, Any], qos: str
) -> None:
    class Webhook(OpenAdmission):
        async def mutate(self, request: AdmissionAttributes) -> None:
            assert request.obj is not None
            request.obj["spec"]["containers"][0]["resources"] = resources

    registry.admission = Webhook()
    created = await registry.create(POD, "default", pod())
    assert created["status"] == {"phase": "Pending", "qosClass": qos}


async def test_immutable_configmaps(registry: ObjectRegistry) -> None:
    created = await registry.create(CM, "default", {**cm(), "immutable": True})
    await refused(registry.update(CM, "default", "a", {**created, "data": {}}), "Invalid", "field is immutable when")


async def test_events_have_two_api_forms(registry: ObjectRegistry) -> None:
    core = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "message": "hi",
        "source": {"component": "c"},
        "reason": "R",
    }
    await registry.create("/events", "default", core)
    new = registry.get("events.k8s.io/events", "default", "e")
    assert (new["apiVersion"], new["regarding"]["name"], new["note"]) == ("events.k8s.io/v1", "p", "hi")
    assert new["deprecatedSource"] == {"component": "c"}
    new["note"] = "bye"
    await registry.update("events.k8s.io/events", "default", "e", new)
    assert registry.get("/events", "default", "e")["message"] == "bye"


async def test_a_write_with_a_concurrent_change_is_repeated(registry: ObjectRegistry) -> None:
    """Without a resourceVersion the change is applied to the newer state; with one it is a conflict."""
    created = await registry.create(CM, "default", cm())

    class Slow(OpenAdmission):
        passes = 0

        async def mutate(self, request: AdmissionAttributes) -> None:
            self.passes += 1
            if self.passes == 1:
                registry.admission = OpenAdmission()
                await registry.modify(CM, "default", "a", lambda o: {**o, "data": {"other": "x"}})
                registry.admission = self

    def add(obj: dict[str, Any]) -> dict[str, Any]:
        return {**obj, "metadata": {"name": "a"}, "data": {**obj["data"], "mine": "y"}}

    slow = registry.admission = Slow()
    after = await registry.modify(CM, "default", "a", add)
    assert after["data"] == {"other": "x", "mine": "y"}
    assert slow.passes == 2
    registry.admission = Slow()
    await refused(registry.update(CM, "default", "a", {**after, "data": {"z": "z"}}), "Conflict", "has been modified")
    assert created["data"] == {"k": "v"}


async def test_concurrent_increments_lose_no_update(registry: ObjectRegistry) -> None:
    class Yield(OpenAdmission):
        async def mutate(self, request: AdmissionAttributes) -> None:
            await asyncio.sleep(0)

    await registry.create(CM, "default", {"metadata": {"name": "n"}, "data": {"n": "0"}})
    registry.admission = Yield()

    async def bump() -> None:
        while True:
            live = registry.get(CM, "default", "n")
            live["data"] = {"n": str(int(live["data"]["n"]) + 1)}
            try:
                await registry.update(CM, "default", "n", live)
                return
            except StatusError as e:
                assert e.reason == "Conflict"

    await asyncio.gather(*(bump() for _ in range(20)))
    assert registry.get(CM, "default", "n")["data"] == {"n": "20"}


async def test_watch_returns_present_objects_then_changes(registry: ObjectRegistry) -> None:
    await registry.create(CM, "default", cm("a"))
    changes: list[tuple[str, str]] = []

    async def follow() -> None:
        async for change in registry.watch(CM, "default"):
            changes.append((change.type, change.object["metadata"]["name"]))
            if len(changes) == 3:
                return

    task = asyncio.create_task(follow())
    await asyncio.sleep(0)
    await registry.create(CM, "other", cm("x"))
    await registry.create(CM, "default", cm("b"))
    await registry.delete(CM, "default", "a")
    await asyncio.wait_for(task, 60)
    assert changes == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    registry.store.compact(2)
    with pytest.raises(StatusError, match="too old resource version: 1"):
        async for _ in registry.watch(CM, "default", 1):
            raise AssertionError("a compacted version must not be watchable")


async def test_a_watcher_of_an_unchanged_kind_does_not_expire(registry: ObjectRegistry) -> None:
    """Otherwise every controller would list again after each change of a rarely changing kind."""
    names: list[str] = []

    async def follow() -> None:
        async for change in registry.watch(SECRET, None, registry.store.revision):
            names.append(change.object["metadata"]["name"])
            return

    task = asyncio.create_task(follow())
    for i in range(3):
        await registry.create(CM, "default", cm(f"a{i}"))
    registry.store.compact(registry.store.revision)
    await registry.create(SECRET, "default", {"metadata": {"name": "s"}})
    await asyncio.wait_for(task, 60)
    assert names == ["s"]
