"""Wrong input from users and node agents to the whole process: configurations, reports, pods."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from control.scheduler.config.shipped import configuration
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import Time
from koordlet.kube import Invalid
from tests.waiting import until

ROOT = Path(__file__).parents[4]


async def test_configuration_errors_have_paths(tmp_path: Path) -> None:
    document: dict[str, Any] = configuration()
    (profile,) = document["profiles"]
    document["paralelism"] = 3
    profile["plugins"] = {**profile["plugins"], "filter": {"enabled": [{"name": "Nonsense"}, {"name": "NodeName"}]}}
    profile["pluginConfig"] = [
        {"name": "NodeResourcesFit", "args": {"ignoreResources": []}},
        {"name": "LoadAwareScheduling", "args": {"usageThresholds": {"cpu": 101}}},
        {"name": "Unheard", "args": {}},
    ]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.scheduler", f"--config={path}", cwd=ROOT,
        env={**os.environ, "HOME": "/nonexistent"}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, text = await process.communicate()
    assert process.returncode == 1
    for expected in (
        'unknown field "paralelism"',
        'unknown field "profiles[0].pluginConfig[0].args.ignoreResources"',
        'profiles[0].plugins.filter: plugin "Nonsense" does not exist',
        "profiles[0].pluginConfig[1].args.usageThresholds",
        "Unheard",
    ):
        assert expected in text.decode()


async def report(world: Any, node: str, at: float, cpu: str = "100m") -> None:
    """The node's NodeMetric as of `at`."""
    status = {"updateTime": str(Time.from_unix(at)), "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu}}}}
    await world.admin.patch(NodeMetric, node, body={"status": status}, subresource="status")


async def test_reports_that_are_old_or_missing(world: Any, scheduler: Any) -> None:
    document: dict[str, Any] = configuration()
    for plugin in document["profiles"][0]["pluginConfig"]:
        if plugin["name"] == "LoadAwareScheduling":
            plugin["args"] |= {"filterExpiredNodeMetrics": True, "usageThresholds": {"cpu": 95}}
    path = world.tmp / "strict.yaml"
    path.write_text(yaml.safe_dump(document))
    await world.node("old")
    metric = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": "old"}}
    await world.apply({**metric, "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}})
    await report(world, "old", time.time() - 3600)
    running = await scheduler(f"--config={path}")
    reports = running.scheduler.assembly.objects.informer(NodeMetric)
    await world.pod("a")
    text = await until(lambda: world.condition("a"))
    assert text.startswith("0/1 nodes are available: 1 node(s) nodeMetric expired.")
    await world.node("silent")  # nothing is known of it, which is no reason to refuse it
    assert (await until(lambda: world.bound("a")))["a"] == "silent"
    await world.pod("b", cpu="4")  # more than is left there
    text = await until(lambda: world.condition("b"))
    assert "1 node(s) nodeMetric expired" in text
    await report(world, "old", time.time(), cpu="3900m")
    # It wakes no pod, because none fits: "c" is examined only once.
    await until(lambda: str(reports.get("old").status.node_metric.node_usage.resources["cpu"]) == "3900m")
    await world.pod("c", cpu="4")
    await until(lambda: says(world, "c", "1 node(s) cpu usage exceed threshold"))
    await report(world, "old", time.time())
    await until(lambda: either(world, "b", "c"))


async def says(world: Any, name: str, words: str) -> bool:
    """Whether that stands in why the pod has no node."""
    return words in await world.condition(name)


async def either(world: Any, *names: str) -> bool:
    """Whether one of these has a node."""
    placed = await world.placed()
    return any(placed[name] for name in names)


async def test_pods_with_absurd_requests(world: Any, scheduler: Any) -> None:
    """The API server refuses some; the others are reported in their status, and no other pod is delayed."""
    await world.node("n1", cpu="2")
    await scheduler()
    try:
        await world.pod("negative", cpu="-1")
    except Invalid as refused:
        assert "cpu" in str(refused)
    else:
        await until(lambda: world.bound("negative"))
    await world.pod("huge", cpu="9223372036854775807")
    await world.pod("tiny", cpu="1n")
    await world.pod("sane")
    await until(lambda: world.bound("tiny", "sane"))
    assert "Insufficient cpu" in await until(lambda: world.condition("huge"))
