"""The official Python clients with the server: CRUD, watch and leader election, sync and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import kubernetes
import kubernetes.aio
import pytest
from kubernetes.aio.leaderelection import electionconfig as aio_config
from kubernetes.aio.leaderelection import leaderelection as aio_election
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock as AioLeaseLock
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from control.standalone.apiserver import ApiServer
from tests.waiting import until


@pytest.fixture
async def aio(server: ApiServer) -> AsyncIterator[Any]:
    configuration = kubernetes.aio.client.Configuration()
    await kubernetes.aio.config.load_kube_config(str(server.kubeconfig_path), client_configuration=configuration)
    async with kubernetes.aio.client.ApiClient(configuration) as client:
        yield client


def sync_client(server: ApiServer) -> Any:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(server.kubeconfig_path), client_configuration=configuration)
    return kubernetes.client.ApiClient(configuration)


async def test_aio_crud_and_typed_errors(aio: Any) -> None:
    core = kubernetes.aio.client.CoreV1Api(aio)
    body = kubernetes.aio.client.V1ConfigMap(metadata=kubernetes.aio.client.V1ObjectMeta(name="a"), data={"k": "v"})
    created = await core.create_namespaced_config_map("default", body)
    assert created.metadata.uid
    patched = await core.patch_namespaced_config_map("a", "default", {"data": {"x": "y"}})
    assert patched.data == {"k": "v", "x": "y"}
    with pytest.raises(kubernetes.aio.client.ApiException) as caught:
        await core.create_namespaced_config_map("default", body)
    assert caught.value.status == 409
    await core.delete_namespaced_config_map("a", "default")


async def test_aio_watch_resumes_from_a_version(aio: Any) -> None:
    core = kubernetes.aio.client.CoreV1Api(aio)
    listed = await core.list_namespaced_secret("default")
    for name in ("a", "b", "c"):
        await core.create_namespaced_secret("default", {"metadata": {"name": name}})
    events = []
    async with kubernetes.aio.watch.Watch().stream(
        core.list_namespaced_secret, "default", resource_version=listed.metadata.resource_version, timeout_seconds=60
    ) as stream:
        async for event in stream:
            events.append((event["type"], event["object"].metadata.name))
            if len(events) == 3:
                break
    assert events == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


async def test_sync_watch(server: ApiServer) -> None:
    client = sync_client(server)
    core = kubernetes.client.CoreV1Api(client)

    def follow() -> list[tuple[str, str]]:
        listed = core.list_namespaced_secret("default")
        core.create_namespaced_secret("default", {"metadata": {"name": "a"}})
        core.delete_namespaced_secret("a", "default")
        watch = kubernetes.watch.Watch()
        events = []
        for event in watch.stream(
            core.list_namespaced_secret,
            "default",
            resource_version=listed.metadata.resource_version,
            timeout_seconds=60,
        ):
            events.append((event["type"], event["object"].metadata.name))
            if len(events) == 2:
                watch.stop()
        return events

    assert await asyncio.to_thread(follow) == [("ADDED", "a"), ("DELETED", "a")]
    client.close()


async def test_aio_leader_election_over_a_lease(aio: Any) -> None:
    # The client's own create passes a parameter that the client itself rejects, so the free lease is made here.
    free = {"metadata": {"name": "elect"}, "spec": {}}
    await kubernetes.aio.client.CoordinationV1Api(aio).create_namespaced_lease("default", free)
    leading: list[str] = []
    tasks = []
    for name in ("one", "two"):

        async def lead(identity: str = name) -> None:
            leading.append(identity)
            await asyncio.sleep(3600)

        config = aio_config.Config(
            AioLeaseLock("elect", "default", name, aio),
            lease_duration=8,  # a machine that pauses for less time does not end the leadership
            renew_deadline=6,
            retry_period=1,
            onstarted_leading=lead,
            onstopped_leading=None,
        )
        tasks.append(asyncio.create_task(aio_election.LeaderElection(config).run()))

    async def leaders(count: int) -> bool:
        return len(leading) >= count

    await until(lambda: leaders(1))
    # It ends without a release, so that the other one has to wait for the lease to expire.
    tasks[0 if leading[0] == "one" else 1].cancel()
    await until(lambda: leaders(2))
    assert sorted(leading) == ["one", "two"]
    lease = await kubernetes.aio.client.CoordinationV1Api(aio).read_namespaced_lease("elect", "default")
    assert lease.spec.holder_identity == leading[1]
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_sync_leader_election_over_a_lease(server: ApiServer) -> None:
    client = sync_client(server)
    started = threading.Event()

    class Stop(Exception):
        pass

    def lead() -> None:
        started.set()

    def give_up() -> None:
        raise Stop

    lock = LeaseLock("elect", "default", "me")
    lock.api_instance = kubernetes.client.CoordinationV1Api(client)
    config = electionconfig.Config(
        lock, lease_duration=60, renew_deadline=50, retry_period=1, onstarted_leading=lead, onstopped_leading=give_up
    )
    election = leaderelection.LeaderElection(config)

    assert await asyncio.to_thread(election.acquire)
    assert await asyncio.to_thread(election.try_acquire_or_renew)
    lease = server.registry.get("coordination.k8s.io/leases", "default", "elect")
    assert lease["spec"]["holderIdentity"] == "me"
    client.close()
