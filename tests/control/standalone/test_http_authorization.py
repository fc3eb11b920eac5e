"""Authorization over HTTPS: a user gets what its rules allow, on every path that leads to the same objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control.standalone.apiserver import ApiServer

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CMS = "/api/v1/namespaces/default/configmaps"
APPLY = "application/apply-patch+yaml"
JANE = "jane-token"


@pytest.fixture
async def http(tmp_path: Path, connect: Any) -> AsyncIterator[Any]:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(f"{JANE},jane,1\n")
    async with ApiServer(tmp_path / "data", controllers=False, token_auth_file=tokens) as server:
        client = connect(server)
        yield client
        await client.session.close()


async def grant(http: Any, *rules: dict[str, Any], name: str = "janes") -> None:
    """Grants jane the rules in the whole cluster."""
    role = {"metadata": {"name": name}, "rules": list(rules)}
    assert (await http("POST", f"{RBAC}/clusterroles", role)).status == 201
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    assert (await http("POST", f"{RBAC}/clusterrolebindings", binding)).status == 201


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> dict[str, Any]:
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split(), **more}


async def test_server_side_apply_creates_only_with_the_right_to_create(http: Any) -> None:
    await grant(http, rule("patch", "configmaps"))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    path = f"{CMS}/a?fieldManager=m"
    response = await http("PATCH", path, body, content_type=APPLY, token=JANE)
    assert (response.status, 'User "jane" cannot create' in response.body["message"]) == (403, True)
    assert (await http("GET", f"{CMS}/a")).status == 404
    await grant(http, rule("create", "configmaps"), name="creator")
    assert (await http("PATCH", path, body, content_type=APPLY, token=JANE)).status == 201
    assert (await http("PATCH", path, body, content_type=APPLY, token=JANE)).status == 200


async def test_put_creates_only_with_the_right_to_create(http: Any) -> None:
    await grant(http, rule("update", "leases", "coordination.k8s.io"))
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/a"
    response = await http("PUT", path, {"metadata": {"name": "a"}, "spec": {}}, token=JANE)
    assert (response.status, 'User "jane" cannot create' in response.body["message"]) == (403, True)
