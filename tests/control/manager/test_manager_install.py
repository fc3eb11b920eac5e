"""deploy/manager as a user installs it, with stock kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from control.manager import manifests
from control.manager.options import WebhookEnv
from control.manager.webhookserver.configurations import (
    MUTATING,
    TEMPLATE,
    VALIDATING,
    ConfigurationTarget,
    WebhookConfiguration,
    desired,
)
from control.standalone.apiserver import ApiServer
from koordlet.kube import Client, ClientConfig

DEPLOY = Path(__file__).parents[3] / "deploy/manager"
KUBECTL = Path(sys.executable).with_name("kubectl")
PATHS = [entry["clientConfig"]["service"]["path"] for entry in (*manifests.MUTATING, *manifests.VALIDATING)]

pytestmark = pytest.mark.kubectl


async def kubectl(server: ApiServer, home: Path, *args: str) -> str:
    """Standard output of a command that must succeed."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(server.kubeconfig_path)}
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), *args, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def install(server: ApiServer, home: Path) -> str:
    """The commands of docs/manager.md, except the one that creates the ConfigMap."""
    await kubectl(server, home, "apply", "--server-side", "-k", str(DEPLOY.with_name("crds")))
    return await kubectl(server, home, "apply", "-k", str(DEPLOY))


async def test_manifests_can_be_applied_repeatedly(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "api") as server:
        first = await install(server, tmp_path)
        for made in ("deployment.apps/koord-manager", "service/koordinator-webhook-service"):
            assert f"{made} created" in first
        async with Client(ClientConfig.load(server.kubeconfig_path)) as admin:
            path = "/apis/apps/v1/namespaces/koordinator-system/deployments/koord-manager"
            spec = json.loads(await admin.raw("GET", path))["spec"]
            assert (spec["replicas"], spec["strategy"]["rollingUpdate"]["maxUnavailable"]) == (2, 0)
        can = ["auth", "can-i", "--as=system:serviceaccount:koordinator-system:koord-manager"]
        assert await kubectl(server, tmp_path, *can, "patch", "nodes/status") == "yes\n"
        assert "created" not in await kubectl(server, tmp_path, "apply", "-k", str(DEPLOY))


async def test_the_configuration_is_created_once_and_not_overwritten(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "api") as server:
        await kubectl(server, tmp_path, "apply", "-f", str(DEPLOY / "namespace.yaml"))
        await kubectl(server, tmp_path, "create", "-f", str(DEPLOY / "config.yaml"))
        own = json.dumps({"data": {"colocation-config": '{"enable": false}'}})
        name = ("configmap", "slo-controller-config", "-n", "koordinator-system")
        await kubectl(server, tmp_path, "patch", *name, "--type=merge", "-p", own)
        await install(server, tmp_path)
        assert json.loads(
            await kubectl(server, tmp_path, "get", *name, "-o", "jsonpath={.data.colocation-config}")
        ) == {"enable": False}


async def test_webhooks_with_a_url_are_changed_to_the_service(tmp_path: Path) -> None:
    """As `koordctl up` leaves them, whose manager serves no Service: url and service together are refused."""
    async with ApiServer(tmp_path / "api") as server, Client(ClientConfig.load(server.kubeconfig_path)) as admin:
        bundle = server.ca_file.read_bytes()
        by_url = ConfigurationTarget(WebhookEnv(host="127.0.0.1"), 9876, PATHS, bundle)
        for made, resource in zip(manifests.webhooks(), (MUTATING, VALIDATING), strict=True):
            collection = f"/apis/admissionregistration.k8s.io/v1/{resource.plural}"
            given = msgspec.convert(made, WebhookConfiguration)
            webhooks, template = desired(given, by_url)
            annotated = {**made["metadata"], "annotations": {TEMPLATE: template}}
            await admin.raw("POST", collection, body={**made, "metadata": annotated, "webhooks": webhooks})
        await kubectl(server, tmp_path, "apply", "-f", str(DEPLOY / "webhooks.yaml"))
        for made, resource in zip(manifests.webhooks(), (MUTATING, VALIDATING), strict=True):
            path = f"/apis/admissionregistration.k8s.io/v1/{resource.plural}/{made['metadata']['name']}"
            for webhook in json.loads(await admin.raw("GET", path))["webhooks"]:
                assert webhook["clientConfig"].get("url") is None
                assert webhook["clientConfig"]["service"]["name"] == "koordinator-webhook-service"
                assert webhook["clientConfig"]["caBundle"], "what the manager filled in stays"
