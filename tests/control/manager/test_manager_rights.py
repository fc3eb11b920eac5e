"""Rights that depend on feature gates: granted with them, and named while they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from control.component.rights import RightsCheck
from control.manager import manifests
from control.manager.rights import FEATURES, needed
from koordlet.api import gates
from koordlet.app.gates import FeatureGates
from tests.rights import asked, granted
from tests.waiting import until

FOLDER = Path(__file__).parents[3] / "deploy/manager-rights"
USER = f"system:serviceaccount:koordinator-system:{manifests.ACCOUNT}"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def configured(text: str) -> list[str]:
    enabled = FeatureGates(gates.MANAGER)
    enabled.set(text)
    return [each.name for each in needed(enabled)]


def test_a_feature_gate_needs_its_rights() -> None:
    assert configured("") == []
    for feature in FEATURES:
        assert configured(f"{feature.gate}=true") == [feature.name]


def test_the_shipped_role_writes_no_pods_and_no_jobs() -> None:
    written = {resource for _, resource, verb in granted(manifests.RULES) if verb not in ("get", "list", "watch")}
    assert not {resource for resource in written if resource.split("/")[0] in ("pods", "jobs")}


def test_the_folder_is_current() -> None:
    texts = manifests.rights_texts()
    assert {path.name for path in FOLDER.iterdir()} == set(texts)
    for name, text in texts.items():
        assert (FOLDER / name).read_text() == text, "run python -m control.manager.manifests --rights"


async def test_with_the_default_gates_no_request_needs_them(cluster: Any, manager: Any) -> None:
    for feature in FEATURES:
        await cluster.admin.raw("DELETE", f"{BINDINGS}/{manifests.ACCOUNT}-{feature.name}")
    running = await manager()
    await cluster.nodes("n1")
    await until(lambda: cluster.spec("nodeslos", "n1"))
    assert not [(right, uri) for right, code, uri in asked(cluster.audit, USER) if code in (401, 403)]
    check = RightsCheck(running.manager.context.client, "manager", FEATURES)
    assert not await check.passed()
    named = "may not patch pods (1 missing): apply deploy/manager-rights/colocation-profile.yaml"
    assert check.problem is not None and named in check.problem
    assert "manager.rights.jobQueueing" in check.problem
    for feature in FEATURES:
        await cluster.install(*feature.role(manifests.ACCOUNT))
    assert await check.passed()
    assert check.problem is None
