"""Certificates change while pods are admitted continuously: no admission fails."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any

import aiohttp
import pytest

from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, KubeError
from tests.waiting import until

SECRET = "/api/v1/namespaces/koordinator-system/secrets/koordinator-webhook-certs"
MERGE = "application/merge-patch+json"
CONFIGURATIONS = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/koordinator-{kind}-webhook-configuration"
    for kind in ("mutating", "validating")
)


class Load:
    """Pods made one after the other (dry run) by a few clients; every failure is kept."""

    def __init__(self, admin: Client) -> None:
        self._admin = admin
        self.admitted = 0
        self.failures: list[str] = []
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(3)]

    async def _run(self, number: int) -> None:
        pod = {"metadata": {"name": f"p-{number}"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        while True:
            try:
                await self._admin.raw("POST", "/api/v1/namespaces/default/pods", params={"dryRun": "All"}, body=pod)
                self.admitted += 1
            except KubeError as error:
                self.failures.append(str(error))
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await end_tasks(*self._tasks)


async def served_by(port: int) -> str:
    """Serial number of the certificate that new connections get."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.close()
    await writer.wait_closed()
    return base64.b64encode(der).decode()


async def bundles(cluster: Any) -> set[str]:
    bundles = set()
    for path in CONFIGURATIONS:
        for entry in (await cluster.get(path))["webhooks"]:
            bundles.add(base64.b64decode(entry["clientConfig"]["caBundle"]).decode())
    return bundles


async def test_webhooks_are_registered_for_the_served_paths(cluster: Any, manager: Any) -> None:
    await manager()
    mutating, validating = [await cluster.get(path) for path in CONFIGURATIONS]
    assert {entry["name"] for entry in mutating["webhooks"]} >= {"mpod-create.koordinator.sh"}
    assert "mnode-status.koordinator.sh" not in {entry["name"] for entry in mutating["webhooks"]}  # its gate is off
    secret = await cluster.get(SECRET)
    ca = base64.b64decode(secret["data"]["ca-cert.pem"]).decode()
    assert {bundle.strip() for bundle in await bundles(cluster)} == {ca.strip()}
    assert {entry["name"] for entry in validating["webhooks"]} >= {"vpod.koordinator.sh"}


@pytest.mark.parametrize("what", ["the server's certificate", "the CA", "the Secret"])
async def test_a_rotation_under_load_fails_no_admission(cluster: Any, manager: Any, what: str) -> None:
    await manager()
    await until(lambda: cluster.get("/api/v1/namespaces/default/serviceaccounts/default"))
    old, ca = await served_by(cluster.webhook_port), (await cluster.get(SECRET))["data"]["ca-cert.pem"]
    load = Load(cluster.admin)
    try:
        await until(lambda: load.admitted > 5)
        match what:
            case "the server's certificate":  # the CA stays
                await cluster.admin.raw("PATCH", SECRET, body={"data": {"cert.pem": ca}}, content_type=MERGE)
            case "the CA":
                broken = base64.b64encode(b"no key").decode()
                body = {"data": {"ca-key.pem": broken, "key.pem": broken}}
                await cluster.admin.raw("PATCH", SECRET, body=body, content_type=MERGE)
            case "the Secret":
                await cluster.admin.raw("DELETE", SECRET)

        async def renewed() -> bool:
            return await served_by(cluster.webhook_port) != old

        await until(renewed)
        after = load.admitted
        await until(lambda: load.admitted > after + 20)
        assert not load.failures, load.failures[:3]
        new = await until(lambda: cluster.get(SECRET))
        assert (new["data"]["ca-cert.pem"] == ca) is (what == "the server's certificate")
        # Existing connections stay open, so use a new one, with the CA bundle of the API server.

        async def agreed() -> set[str] | None:
            bundle_set = await bundles(cluster)
            return bundle_set if len(bundle_set) == 1 else None

        (bundle,) = await until(agreed)
        context = ssl.create_default_context(cadata=bundle)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.get(f"https://localhost:{cluster.webhook_port}/healthz") as response,
        ):
            assert response.status == 200
    finally:
        await load.stop()
    assert not load.failures, load.failures[:3]


async def test_with_a_host_certificates_are_stored_in_files(cluster: Any, manager: Any) -> None:
    running = await manager(WEBHOOK_HOST="127.0.0.1")
    assert await cluster.get(SECRET) is None
    mutating = await cluster.get(CONFIGURATIONS[0])
    urls = {entry["clientConfig"]["url"] for entry in mutating["webhooks"]}
    assert f"https://127.0.0.1:{cluster.webhook_port}/mutate-pod" in urls
    await until(lambda: cluster.get("/api/v1/namespaces/default/serviceaccounts/default"))
    await cluster.admin.raw("POST", "/api/v1/namespaces/default/pods", body=POD)
    assert await running.stop() == 0


POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_without_a_server_the_failure_policy_decides(cluster: Any, manager: Any, policy: str) -> None:
    running = await manager(
        "--feature-gates=NodeMutatingWebhook=true,NodeValidatingWebhook=true",
        WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS=policy,
    )
    await until(lambda: cluster.get("/api/v1/namespaces/default/serviceaccounts/default"))
    assert await running.stop() == 0
    await cluster.nodes("n1")  # its webhooks are ignored
    created = cluster.admin.raw("POST", "/api/v1/namespaces/default/pods", body=POD)
    if policy == "Ignore":
        await created
    else:
        with pytest.raises(KubeError, match=r"failed calling webhook \"mpod-create.koordinator.sh\""):
            await created
    # The webhook is not called for pods that must start without the manager.
    for namespace in ("koordinator-system", "kube-system"):
        await until(lambda namespace=namespace: cluster.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"))
        await cluster.admin.raw("POST", f"/api/v1/namespaces/{namespace}/pods", body=POD)


async def test_a_second_replica_serves_the_same_certificates(cluster: Any, manager: Any) -> None:
    first = await manager()
    second = await manager(name="b", wait=False, WEBHOOK_PORT="0")
    await second.ready()
    stores = [replica.manager.env.cert_dir for replica in (first, second)]
    contents = [{name: (store / name).read_bytes() for name in ("tls.crt", "ca-cert.pem")} for store in stores]
    assert contents[0] == contents[1]
    leads = [replica.manager.context.internal.get_sample_value for replica in (first, second)]
    await until(lambda: sum(sample("koordinator_manager_is_leader") for sample in leads) == 1)


async def test_webhooks_are_registered_when_the_service_has_a_ready_endpoint(cluster: Any, manager: Any) -> None:
    """The manager becomes ready first: its readiness is what makes the endpoint ready."""
    static = "/apis/discovery.k8s.io/v1/namespaces/koordinator-system/endpointslices/static"
    ready = await cluster.get(static)
    waiting = {**ready, "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": False}}]}
    await cluster.admin.raw("PUT", static, body=waiting)
    running = await manager(registered=False)
    checked = running.manager.context.framework.get_sample_value
    name = "koord_manager_webhook_certificate_checked_timestamp_seconds"
    for path in CONFIGURATIONS:
        assert not (await cluster.get(path)).get("webhooks")
    assert checked(name) == 0
    current = await cluster.get(static)
    await cluster.admin.raw("PUT", static, body={**current, "endpoints": ready["endpoints"]})
    await until(lambda: checked(name) > 0)
    for path in CONFIGURATIONS:
        assert (await cluster.get(path))["webhooks"]


async def test_foreign_changes_of_a_webhook_configuration_are_reverted(cluster: Any, manager: Any) -> None:
    await manager()
    before = await cluster.get(CONFIGURATIONS[0])
    await cluster.admin.raw("PATCH", CONFIGURATIONS[0], body={"webhooks": []}, content_type=MERGE)

    async def restored() -> bool:
        return bool((await cluster.get(CONFIGURATIONS[0])).get("webhooks") == before["webhooks"])

    await until(restored)


@pytest.mark.parametrize("what", ["the CA", "the Secret"])
async def test_every_replica_is_always_trusted(cluster: Any, manager: Any, what: str) -> None:
    """Whichever of two replicas makes the new CA: what each of them serves fits what the API server trusts."""
    await manager()
    second = await manager(name="b", WEBHOOK_PORT="0")
    ports = (cluster.webhook_port, second.manager.server.port)
    failures: list[str] = []

    async def trusted(port: int) -> None:
        (bundle, *more) = await bundles(cluster)
        context = ssl.create_default_context(cadata=bundle)
        try:
            _, writer = await asyncio.open_connection("localhost", port, ssl=context)
        except ssl.SSLError as error:
            if await bundles(cluster) == {bundle, *more}:  # otherwise it changed meanwhile
                failures.append(f"{port}: {error}")
            return
        writer.close()
        await writer.wait_closed()

    async def watch() -> None:
        while True:
            for port in ports:
                await trusted(port)

    old = [await served_by(port) for port in ports]
    watching = asyncio.create_task(watch())
    try:
        if what == "the CA":
            broken = base64.b64encode(b"no key").decode()
            body = {"data": {"ca-key.pem": broken, "key.pem": broken}}
            await cluster.admin.raw("PATCH", SECRET, body=body, content_type=MERGE)
        else:
            await cluster.admin.raw("DELETE", SECRET)

        async def renewed() -> bool:
            now = [await served_by(port) for port in ports]
            return now[0] == now[1] and now[0] not in old

        await until(renewed)
        for port in ports:
            await trusted(port)
    finally:
        await end_tasks(watching)
    assert not failures, failures[:3]
