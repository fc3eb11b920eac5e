"""The commands of docs/recommender.md with a real kubectl: new pods get the recommended requests."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

DOC = Path(__file__).parents[4] / "docs/recommender.md"
STATUS = "/apis/analysis.koordinator.sh/v1alpha1/namespaces/default/recommendations/web/status"
LOOK = "kubectl get recom"


@pytest.mark.kubectl
async def test_the_documented_commands(world: Any, checkpoint: Any, manager: Any, tmp_path: Path) -> None:
    environ = {**os.environ, "KUBECONFIG": str(world.cluster.server.kubeconfig_path), "HOME": str(tmp_path)}

    async def run(command: str) -> str:
        process = await asyncio.create_subprocess_shell(
            command, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        return output

    commands = DOC.read_text().split("```")[1]
    make, rest = commands.split(LOOK, 1)
    first_line, *change = (LOOK + rest).strip().splitlines()
    await run(make)
    # ten days of history, to be found by the manager
    body = {"status": {"checkpoint": [checkpoint("app")]}}
    await world.raw("PATCH", STATUS, body=body, content_type="application/merge-patch+json")
    await manager(
        "--feature-gates=Recommender=true", "--recommender-sample-interval=200ms", "--controllers=recommender"
    )
    await world.deployment("web", 2, {"requests": {"cpu": "4", "memory": "4Gi"}})
    await until(lambda: world.running("web", 2))

    async def recommended() -> bool:
        return "podStatus" in await world.status("web")

    await until(recommended)
    output = await run(first_line)
    assert '"cpu":"1140m"' in output and "cpu 1140m = p95 1036m x 1.1" in output
    for command in change:
        await run(command)

    async def recommendation_is_written() -> bool:
        await world.kubelet()
        pods = await world.pods("web")
        return len(pods) == 2 and all(
            str(pod.spec.containers[0].resources.requests["cpu"]) == "1140m" for pod in pods
        )  # fmt: skip

    await until(recommendation_is_written)
