"""deploy/manager as a user installs it, with stock kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from control.standalone.apiserver import ApiServer
from koordlet.kube import Client, Config

ROOT = Path(__file__).parents[3]
KUBECTL = Path(sys.executable).with_name("kubectl")

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


async def test_it_applies_in_one_go_and_again(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "api") as server:
        await kubectl(server, tmp_path, "apply", "--server-side", "-k", str(ROOT / "deploy/crds"))
        first = await kubectl(server, tmp_path, "apply", "-k", str(ROOT / "deploy/manager"))
        for made in ("deployment.apps/koord-manager", "service/koordinator-webhook-service", "slo-controller-config"):
            assert f"{made} created" in first
        async with Client(Config.load(server.kubeconfig_path)) as admin:
            path = "/apis/apps/v1/namespaces/koordinator-system/deployments/koord-manager"
            spec = json.loads(await admin.raw("GET", path))["spec"]
            assert (spec["replicas"], spec["strategy"]["rollingUpdate"]["maxUnavailable"]) == (2, 0)
        can = ["auth", "can-i", "--as=system:serviceaccount:koordinator-system:koord-manager"]
        assert await kubectl(server, tmp_path, *can, "patch", "nodes/status") == "yes\n"
