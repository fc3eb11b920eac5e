"""What our client relies on, run against any API server: the fake one here, the embedded one, a real cluster.

`api` yields a loaded ClientConfig; extend it for another server. With KUBECONFIG set the same class
runs against that cluster (marker e2e); it works in a namespace of its own and removes it.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koordlet.api.core import ConfigMap, Event, Lease, Namespace
from koordlet.api.meta import ObjectMeta
from koordlet.kube import (
    Client,
    ClientConfig,
    Conflict,
    EventRecorder,
    Informer,
    Invalid,
    LeaderElector,
    NotFound,
    ObjectInformer,
    PatchKind,
    merge_diff,
)
from tests.koordlet.kube.conftest import FakeApi
from tests.present import present
from tests.waiting import until

SERVERS = ["fake", "standalone"]
if os.environ.get("KUBECONFIG"):
    SERVERS.append(pytest.param("cluster", marks=pytest.mark.e2e))  # type: ignore[arg-type]


@pytest.fixture(params=SERVERS)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ClientConfig]:
    """A ClientConfig for the server under test."""
    if request.param == "fake":
        fake = FakeApi()
        await fake.start()
        yield ClientConfig(server=fake.url, qps=0)
        await fake.stop()
    elif request.param == "standalone":
        from control.standalone.apiserver.server import ApiServer

        async with ApiServer(tmp_path / "data", port=0) as server:
            yield ClientConfig.load(server.kubeconfig_path, qps=0)
    else:
        yield ClientConfig.load(qps=0)


@pytest.fixture
async def kube(api: ClientConfig) -> AsyncIterator[Client]:
    async with Client(api, registry=CollectorRegistry()) as client:
        yield client


@pytest.fixture
async def namespace(kube: Client) -> AsyncIterator[str]:
    name = f"koord-test-{uuid.uuid4().hex[:8]}"
    await kube.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    await kube.delete(Namespace, name)


def config_map(name: str, namespace: str, **data: Any) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data)


class TestConformance:
    async def test_verbs(self, kube: Client, namespace: str) -> None:
        created = await kube.create(config_map("a", namespace, k="v", gone="x"))
        assert created.metadata.uid and created.metadata.resource_version
        with pytest.raises(Conflict) as caught:
            await kube.create(config_map("a", namespace))
        assert caught.value.already_exists
        change = merge_diff({"k": "v", "gone": "x"}, {"k": "w", "new": "y"})
        assert change == {"k": "w", "gone": None, "new": "y"}
        patched = await kube.patch(ConfigMap, "a", namespace, body={"data": change})
        assert patched.data == {"k": "w", "new": "y"}
        stale = {"metadata": {"resourceVersion": created.metadata.resource_version}, "data": {"k": "z"}}
        with pytest.raises(Conflict) as caught:
            await kube.patch(ConfigMap, "a", namespace, body=stale)
        assert not caught.value.already_exists
        assert (await kube.get(ConfigMap, "a", namespace)).data == {"k": "w", "new": "y"}
        with pytest.raises(Conflict):
            await kube.delete(ConfigMap, "a", namespace, uid=str(uuid.uuid4()))
        assert await kube.delete(ConfigMap, "a", namespace, uid=created.metadata.uid)
        with pytest.raises(NotFound):
            await kube.get(ConfigMap, "a", namespace)
        assert not await kube.delete(ConfigMap, "a", namespace, missing_ok=True)
        with pytest.raises(Invalid):
            await kube.create(config_map("Not_A_Name", namespace))

    async def test_patch_kinds(self, kube: Client, namespace: str) -> None:
        for kind, body in (
            (PatchKind.APPLY, {"data": {"a": "1"}}),
            (PatchKind.STRATEGIC, {"data": {"b": "2"}}),
            (PatchKind.JSON, [{"op": "replace", "path": "/data/a", "value": "3"}]),
        ):
            manager = "conformance" if kind is PatchKind.APPLY else None
            patched = await kube.patch(ConfigMap, "p", namespace, body=body, kind=kind, field_manager=manager)
        assert patched.data == {"a": "3", "b": "2"}

    async def test_list_in_pages(self, kube: Client, namespace: str) -> None:
        for number in range(5):
            await kube.create(config_map(f"page-{number}", namespace))
        config_maps = await kube.list(ConfigMap, namespace, limit=2)
        assert [m.metadata.name for m in config_maps if m.metadata.name.startswith("page-")] == [
            f"page-{number}" for number in range(5)
        ]
        named = await kube.list(ConfigMap, namespace, field_selector={"metadata.name": "page-3"})
        assert [m.metadata.name for m in named] == ["page-3"]

    async def test_informer_follows(self, kube: Client, namespace: str) -> None:
        await kube.create(config_map("before", namespace))
        informer, events = Informer(kube, ConfigMap, namespace), []
        informer.add_handler(
            lambda new: events.append(("add", new.metadata.name)),
            lambda old, new: events.append(("update", new.metadata.name)),
            lambda gone: events.append(("delete", gone.metadata.name)),
        )
        await informer.start()
        await informer.synced.wait()
        assert informer.get(f"{namespace}/before") is not None
        await kube.create(config_map("after", namespace, big="x" * 300_000))
        await kube.patch(ConfigMap, "after", namespace, body={"data": {"k": "v"}})
        await kube.delete(ConfigMap, "before", namespace)
        await until(lambda: ("delete", "before") in events)
        mine = [(what, name) for what, name in events if name in ("before", "after")]
        assert mine == [("add", "before"), ("add", "after"), ("update", "after"), ("delete", "before")]
        assert len(present(informer.get(f"{namespace}/after")).data["big"]) == 300_000
        await informer.stop()

    async def test_informer_resumes_after_a_stop(self, kube: Client, namespace: str) -> None:
        informer = ObjectInformer(kube, ConfigMap, "one", namespace)
        await informer.start()
        await informer.synced.wait()
        await informer.stop()
        await kube.create(config_map("one", namespace))
        await kube.create(config_map("two", namespace))
        await informer.start()
        await until(lambda: informer.object is not None)
        assert len(informer.list()) == 1
        assert kube.registry is not None
        lists = kube.registry.get_sample_value("koord_informer_relists_total", {"informer": "configmaps"})
        assert lists == 1
        await informer.stop()

    async def test_leader_election(self, kube: Client, namespace: str) -> None:
        async def lead() -> str:
            lease = await kube.get(Lease, "leader", namespace)
            return lease.spec.holder_identity  # type: ignore[return-value]

        for identity in ("a", "b"):  # the second need not wait: the first released
            elector = LeaderElector(kube, namespace, "leader", identity, registry=CollectorRegistry())
            async with asyncio.timeout(60):
                assert await elector.run(lead) == identity
        assert (await kube.get(Lease, "leader", namespace)).spec.lease_transitions == 1

    async def test_events(self, kube: Client, namespace: str) -> None:
        about = await kube.create(config_map("subject", namespace))
        recorder = EventRecorder(kube, "conformance", "here")
        await recorder.start()
        for _ in range(2):
            recorder.warning(about, "Tried", "it happened")
        sent = lambda: present(kube.registry).get_sample_value("koord_events_total", {"outcome": "merged"})  # noqa: E731
        await until(lambda: sent() == 1)  # type: ignore[no-untyped-call]
        (event,) = await kube.list(Event, namespace)
        assert (event.count, event.reason, event.involved_object.name) == (2, "Tried", "subject")
        await recorder.stop()
