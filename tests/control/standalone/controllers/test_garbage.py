"""The running garbage collector and namespace controllers, with a registry in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.standalone.controllers.garbage import Address, GarbageCollector, Graph
from control.standalone.controllers.namespaces import ROOT_CA, NamespaceDefaults, NamespaceDeletion
from control.standalone.deletion import DeletionOptions
from tests.control.standalone.controllers.conftest import Cluster
from tests.present import present

CM, RS, SECRET = "/configmaps", "apps/replicasets", "/secrets"


def reference(owner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], **more}  # fmt: skip


async def child(
    cluster: Cluster, name: str, *owners: dict[str, Any], block: bool = False, key: str = CM
) -> dict[str, Any]:
    references = [reference(owner, blockOwnerDeletion=block) for owner in owners]
    return await cluster.create(key, name, metadata={"ownerReferences": references})


async def delete(cluster: Cluster, key: str, name: str, policy: str = "Background") -> None:
    await cluster.registry.delete(key, "default", name, options=DeletionOptions(propagation_policy=policy))


async def test_dependents_of_dependents_are_deleted_with_the_owner(
    cluster: Cluster, running: Callable[..., Awaitable[None]]
) -> None:
    owner = await cluster.create(CM, "owner")
    middle = await child(cluster, "middle", owner)
    await child(cluster, "leaf", middle, key=SECRET)
    await cluster.create(CM, "bystander")
    await delete(cluster, CM, "owner")
    await running(GarbageCollector(cluster.registry), lambda: not cluster.names(SECRET))
    assert cluster.names(CM) == ["bystander"]


async def test_one_owner_left_keeps_the_dependent(cluster: Cluster, running: Callable[..., Awaitable[None]]) -> None:
    first, second = await cluster.create(CM, "one"), await cluster.create(CM, "two")
    await child(cluster, "child", first, second, key=SECRET)
    await delete(cluster, CM, "one")

    def settled() -> bool:
        return len(present(cluster.find(SECRET, "child"))["metadata"]["ownerReferences"]) == 1

    await running(GarbageCollector(cluster.registry), settled)
    assert present(cluster.find(SECRET, "child"))["metadata"]["ownerReferences"] == [
        reference(second, blockOwnerDeletion=False)
    ]


async def test_a_new_object_of_the_same_name_is_not_the_owner(
    cluster: Cluster, running: Callable[..., Awaitable[None]]
) -> None:
    owner = await cluster.create(CM, "owner")
    await child(cluster, "child", owner, key=SECRET)
    await delete(cluster, CM, "owner")
    await cluster.create(CM, "owner")
    await running(GarbageCollector(cluster.registry), lambda: not cluster.names(SECRET))


async def test_foreground_deletion_waits_for_blocking_dependents(
    cluster: Cluster, running: Callable[..., Awaitable[None]]
) -> None:
    owner = await cluster.create(CM, "owner")
    owners = [reference(owner, blockOwnerDeletion=True)]
    await cluster.create(SECRET, "held", metadata={"ownerReferences": owners, "finalizers": ["example.org/hold"]})
    await child(cluster, "loose", owner, key=SECRET)
    await delete(cluster, CM, "owner", "Foreground")
    collector = GarbageCollector(cluster.registry)
    await running(collector, lambda: cluster.names(SECRET) == ["held"])
    assert present(cluster.find(CM, "owner"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert present(cluster.find(SECRET, "held"))["metadata"]["deletionTimestamp"]

    def release(obj: dict[str, Any]) -> dict[str, Any]:
        del obj["metadata"]["finalizers"]
        return obj

    await cluster.registry.modify(SECRET, "default", "held", release)
    await running(collector, lambda: cluster.find(CM, "owner") is None)


async def test_orphans_lose_the_reference_and_stay(cluster: Cluster, running: Callable[..., Awaitable[None]]) -> None:
    owner = await cluster.create(CM, "owner")
    await child(cluster, "child", owner, key=SECRET)
    await delete(cluster, CM, "owner", "Orphan")
    await running(GarbageCollector(cluster.registry), lambda: cluster.find(CM, "owner") is None)
    assert "ownerReferences" not in present(cluster.find(SECRET, "child"))["metadata"]


async def test_an_owner_of_an_unknown_kind_is_not_treated_as_deleted(
    cluster: Cluster, running: Callable[..., Awaitable[None]]
) -> None:
    ghost = {"apiVersion": "example.org/v1", "kind": "Ghost", "metadata": {"name": "g", "uid": "u"}}
    await child(cluster, "kept", ghost, key=SECRET)
    owner = await cluster.create(CM, "owner")
    await child(cluster, "going", owner, key=SECRET)
    await delete(cluster, CM, "owner")
    await running(GarbageCollector(cluster.registry), lambda: cluster.names(SECRET) == ["kept"])


async def test_an_owner_deleted_before_its_watch_starts_is_noticed(cluster: Cluster) -> None:
    owner = await cluster.create(CM, "owner")
    await child(cluster, "child", owner, key=SECRET)
    collector = GarbageCollector(cluster.registry)
    turns = 0

    def gone() -> bool:
        nonlocal turns
        turns += 1
        if turns == 2:
            cluster.registry.store.remove(CM, "default", "owner", int(owner["metadata"]["resourceVersion"]))
        return not cluster.names(SECRET)

    await collector.start()
    try:
        async with asyncio.timeout(60):
            while not gone():  # noqa: ASYNC110 - at the second turn the child has been reconciled, before any watch starts
                await asyncio.sleep(0)
    finally:
        await collector.stop()


async def test_owners_deleted_while_running(cluster: Cluster, running: Callable[..., Awaitable[None]]) -> None:
    owner = await cluster.create(CM, "owner")
    await child(cluster, "child", owner, key=SECRET)
    collector = GarbageCollector(cluster.registry)
    following = {kind.key for kind in collector._kinds()}
    await running(collector, lambda: collector._following.keys() == following)
    deleted = False

    def gone() -> bool:
        nonlocal deleted
        if not deleted and collector._following.keys() == following:
            deleted = True
            cluster.registry.store.remove(CM, "default", "owner", int(owner["metadata"]["resourceVersion"]))
        return not cluster.names(SECRET)

    await running(collector, gone)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 4), max_size=3)), max_size=30))
def test_the_graph_equals_its_edges(steps: list[tuple[int, set[int]]]) -> None:
    graph, edges = Graph(), {}
    for node, owners in steps:
        if owners:
            graph.observe(Address("k", "", str(node), str(node)), frozenset(map(str, owners)))
            edges[str(node)] = set(map(str, owners))
        else:
            graph.forget(str(node))
            edges.pop(str(node), None)
    for owner in map(str, range(5)):
        assert [a.uid for a in graph.dependents_of(owner)] == sorted(n for n, of in edges.items() if owner in of)
    assert set(graph.dependents) == {owner for of in edges.values() for owner in of}


async def test_deleting_a_namespace_deletes_its_content(
    cluster: Cluster, running: Callable[..., Awaitable[None]]
) -> None:
    await cluster.create("/namespaces", "ns")
    await cluster.create("/serviceaccounts", "default", "ns")
    await cluster.create(CM, "c", "ns")
    await cluster.pod("p", "ns")
    await cluster.create(CM, "other")
    await cluster.registry.delete("/namespaces", None, "ns")
    assert present(cluster.find("/namespaces", "ns"))["status"]["phase"] == "Terminating"
    await running(NamespaceDeletion(cluster.registry), lambda: cluster.find("/namespaces", "ns") is None)
    assert cluster.registry.list(CM, "ns") == []
    assert cluster.names(CM) == ["other"]


async def test_a_terminating_namespace_reports_what_remains(cluster: Cluster) -> None:
    await cluster.create("/namespaces", "ns")
    await cluster.create(CM, "c", "ns", metadata={"finalizers": ["example.org/hold"]})
    await cluster.registry.delete("/namespaces", None, "ns")
    again = await NamespaceDeletion(cluster.registry).reconcile(("", "ns"))
    assert again is not None
    conditions = present(cluster.find("/namespaces", "ns"))["status"]["conditions"]
    rows = {each["type"]: (each["status"], each["message"]) for each in conditions}
    assert rows["NamespaceContentRemaining"] == (
        "True",
        "Some resources are remaining: ConfigMap has 1 resource instances",
    )
    message = "Some content in the namespace has finalizers remaining: example.org/hold in 1 resource instances"
    assert rows["NamespaceFinalizersRemaining"] == ("True", message)


async def test_a_namespace_gets_and_keeps_its_default_objects(cluster: Cluster) -> None:
    await cluster.create("/namespaces", "ns")
    controller = NamespaceDefaults(cluster.registry, "PEM")
    await controller.reconcile(("", "ns"))
    assert cluster.names("/serviceaccounts", "ns") == ["default"]
    assert present(cluster.find(CM, ROOT_CA, "ns"))["data"] == {"ca.crt": "PEM"}
    await cluster.registry.modify(CM, "ns", ROOT_CA, lambda o: {**o, "data": {}})
    await cluster.registry.delete("/serviceaccounts", "ns", "default")
    await controller.reconcile(("", "ns"))
    assert cluster.names("/serviceaccounts", "ns") == ["default"]
    assert present(cluster.find(CM, ROOT_CA, "ns"))["data"] == {"ca.crt": "PEM"}


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_the_default_objects_controller_reacts_to_changes(
    cluster: Cluster, running: Callable[..., Awaitable[None]], name: str
) -> None:
    if name != "default":
        await cluster.create("/namespaces", name)
    await running(NamespaceDefaults(cluster.registry, "PEM"), lambda: cluster.find(CM, ROOT_CA, name) is not None)
