"""The descheduler under its own roles: every request is allowed, and every granted right is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

from control.descheduler.process import manifests
from control.descheduler.process.rights import DRAIN, FEATURES, MIGRATION
from koordlet.api.core import Node
from tests.control.descheduler.process.conftest import balancing
from tests.control.descheduler.process.test_descheduler_process import budget, hot_and_idle, len_of
from tests.ports import free_port
from tests.rights import Right, asked, granted
from tests.waiting import until

USER = f"system:serviceaccount:koordinator-system:{manifests.ACCOUNT}"
BASE = granted(
    (*manifests.RULES, *(rule for each in FEATURES if each not in (MIGRATION, DRAIN) for rule in each.rules))
)
GRANTED = BASE | granted((*MIGRATION.rules, *manifests.NAMESPACE_RULES))


def unused(audit: Path) -> set[Right]:
    """Without the rights of MigrationController, which test_migration_process.py uses."""
    migrations = granted(MIGRATION.rules) - BASE
    return GRANTED - migrations - {right for right, _, _ in asked(audit, USER)}


def without_watches(audit: Path) -> set[Right]:
    """A watch is in the audit log when it ends."""
    return {right for right in unused(audit) if right[2] != "watch"}


async def test_every_call_is_allowed_and_every_right_is_used(world: Any, descheduler: Any) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    await world.apply({**kind, "metadata": {"name": "protected"}, "value": 100000})
    await budget(world, 0)
    await hot_and_idle(world, "web-0", "web-1")
    document = balancing()
    args = {"priorityThreshold": {"name": "protected"}, "ignorePodsWithoutPDB": True}
    (profile,) = document["profiles"]
    classes = [{"name": name, "nodeSelector": {"matchLabels": {"pool": name}}} for name in ("gold", "iron")]
    profile["pluginConfig"] += [
        {"name": "DefaultEvictor", "args": args},
        {"name": "CustomPriority", "args": {"mode": "DrainNode", "autoCordon": True, "evictionOrder": classes}},
    ]
    profile["plugins"]["balance"]["enabled"] += [{"name": "CustomPriority"}, {"name": "ScaleDownBinPack"}]
    for name in ("gold", "iron"):
        await world.node(name, pool=name)
    await world.replica("drained", "gold")
    port = free_port()
    running = await descheduler(document, "--bind-address=127.0.0.1", f"--secure-port={port}")
    await until(lambda: len_of(world, 1), 20)
    (gone,) = {"web-0", "web-1"} - await world.pods()
    assert "drained" not in await world.pods()
    assert (await world.admin.get(Node, "gold")).spec.unschedulable
    await until(lambda: world.events(gone), 20)
    events, node = running.process.profiles[0].events, running.process.state.nodes["hot"].node
    for _ in range(2):  # the second one increases the count of the first one
        events.normal(node, "Descheduled", "repeated")
    async with aiohttp.ClientSession() as session:
        for headers, expected in (({"Authorization": "Bearer x"}, 401), ({}, 403)):
            url = f"https://127.0.0.1:{port}/metrics"
            async with session.get(url, headers=headers, ssl=False) as answer:
                assert answer.status == expected
    try:
        await until(lambda: not without_watches(world.audit), 20)
    except TimeoutError:
        raise AssertionError(f"granted and never used: {without_watches(world.audit)}") from None
    await running.stop()
    await until(lambda: not unused(world.audit))
    assert {(right, uri) for right, code, uri in asked(world.audit, USER) if code in (401, 403)} == set()
    assert {right for right, _, _ in asked(world.audit, USER)} <= GRANTED
