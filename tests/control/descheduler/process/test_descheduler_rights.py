"""Rights that depend on the configuration: which it needs, and that missing ones are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from control.component.rights import RightsCheck
from control.descheduler.config.load import load
from control.descheduler.config.shipped import configuration
from control.descheduler.plugins.registry import PLUGINS
from control.descheduler.process import manifests
from control.descheduler.process.rights import FEATURES, needed
from koordlet.kube import NotFound
from tests.control.descheduler.process.conftest import balancing
from tests.control.descheduler.process.test_migration_process import migrating
from tests.rights import granted
from tests.waiting import until

FOLDER = Path(__file__).parents[4] / "deploy/descheduler-rights"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def configured(document: dict[str, Any]) -> list[str]:
    return [each.name for each in needed(load(yaml.safe_dump(document), PLUGINS).profiles)]


def with_balance(*plugins: str, **args: Any) -> dict[str, Any]:
    document = balancing()
    (profile,) = document["profiles"]
    profile["plugins"]["balance"]["enabled"] = [{"name": name} for name in plugins]
    profile["pluginConfig"] += [{"name": name, "args": value} for name, value in args.items()]
    return document


CLASSES = [{"name": name, "nodeSelector": {"matchLabels": {"pool": name}}} for name in ("gold", "iron")]
CORDON = {"mode": "DrainNode", "autoCordon": True, "evictionOrder": CLASSES}


@pytest.mark.parametrize(
    ("document", "features"),
    [
        (configuration(), []),
        (with_balance("LowNodeLoad"), ["eviction"]),
        (with_balance("ScaleDownBinPack"), ["deletion-cost"]),
        (migrating(), ["eviction", "migration"]),
        (with_balance("CustomPriority", CustomPriority=CORDON), ["eviction", "cordon"]),
        (with_balance("CustomPriority", CustomPriority={**CORDON, "autoCordon": False}), ["eviction"]),
    ],
)
def test_a_configuration_needs_the_rights_of_its_plugins(document: dict[str, Any], features: list[str]) -> None:
    assert configured(document) == features


def test_the_shipped_role_writes_nothing_but_reports() -> None:
    written = {right for right in granted(manifests.RULES) if right[2] not in ("get", "list", "watch")}
    reviews = {"tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews"}
    assert {resource for _, resource, _ in written} == {"events"} | reviews


def test_the_folder_is_current() -> None:
    texts = manifests.rights_texts()
    assert {path.name for path in FOLDER.iterdir()} == set(texts)
    for name, text in texts.items():
        assert (FOLDER / name).read_text() == text, "run python -m control.descheduler.process.manifests --rights"


async def test_missing_rights_are_named_until_they_are_granted(world: Any, descheduler: Any) -> None:
    name = "koord-descheduler-eviction"
    await world.admin.raw("DELETE", f"{RBAC}/clusterrolebindings/{name}")
    await until(lambda: gone(world, f"{RBAC}/clusterrolebindings/{name}"))
    running = await descheduler(balancing())
    problem = (
        "may not create pods/eviction (1 missing): apply deploy/descheduler-rights/eviction.yaml, "
        "or set the chart's value descheduler.rights.eviction"
    )

    async def rights() -> tuple[int, str]:
        status, text = await running.page("/readyz/rights")
        return status, text

    await until(lambda: failed(rights, problem))
    (eviction,) = (each for each in FEATURES if each.name == "eviction")
    _, binding = eviction.role(manifests.ACCOUNT)
    check = RightsCheck(running.process.client, "descheduler", [eviction])
    assert not await check.passed() and check.problem == problem
    await world.admin.raw("POST", f"{RBAC}/clusterrolebindings", body=binding)
    assert await check.passed() and check.problem is None


async def gone(world: Any, path: str) -> bool:
    try:
        await world.admin.raw("GET", path)
    except NotFound:
        return True
    return False


async def failed(rights: Any, problem: str) -> bool:
    status, text = await rights()
    return status != 200 and problem in text
