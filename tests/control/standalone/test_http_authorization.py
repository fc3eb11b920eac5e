"""Authorization over HTTPS: a user gets what its rules allow, on every path that leads to the same objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from control.standalone.apiserver import ApiServer

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SECRETS = "/api/v1/namespaces/default/secrets"
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


async def secrets(http: Any) -> None:
    """Two secrets, of which jane may read one."""
    for name in ("allowed", "other"):
        secret = {"metadata": {"name": name}, "stringData": {"key": name}}
        assert (await http("POST", SECRETS, secret)).status == 201
    await grant(http, rule("get list watch", "secrets", resourceNames=["allowed"]))


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


async def test_a_watch_of_one_name_has_only_that_object(http: Any) -> None:
    await secrets(http)
    assert (await http("GET", SECRETS, token=JANE)).status == 403
    path = "/api/v1/watch/namespaces/default/secrets/allowed?timeoutSeconds=1&resourceVersion=0"
    names = await watched_names(http, path)
    assert names == ["allowed"]


async def watched_names(http: Any, path: str) -> list[str]:
    response = await asyncio.wait_for(http("GET", path, token=JANE), 30)
    assert response.status == 200, response.text
    return [json.loads(line)["object"]["metadata"]["name"] for line in response.text.splitlines()]


@pytest.mark.parametrize(
    "selector",
    [
        "metadata.name=allowed",
        "type!=x,metadata.name=allowed",
        r"type!=x\,metadata.name=allowed",
        r"type!=x\\,metadata.name=allowed",
        "type!=(,metadata.name=allowed",
        "type!=x),metadata.name=allowed",
        "metadata.name=allowed,metadata.name=other",
        "metadata.name!=other",
        "metadata.name = allowed",
    ],
)
async def test_a_field_selector_lists_only_authorized_names(http: Any, selector: str) -> None:
    await secrets(http)
    response = await http("GET", f"{SECRETS}?fieldSelector={quote(selector)}", token=JANE)
    if response.status == 200:
        assert [item["metadata"]["name"] for item in response.body["items"]] in ([], ["allowed"])
    else:
        assert response.status in (400, 403)
    plain = await http("GET", f"{SECRETS}?fieldSelector=metadata.name%3Dallowed", token=JANE)
    assert [item["metadata"]["name"] for item in plain.body["items"]] == ["allowed"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Impersonate-Group": "system:serviceaccounts:kube-system"},
        {"Impersonate-Group": "system:serviceaccounts"},
        {"Impersonate-Group": "system:masters"},
        {"Impersonate-Uid": "1234"},
    ],
    ids=lambda headers: "=".join(next(iter(headers.items()))),
)
async def test_every_impersonated_group_and_uid_needs_the_right(http: Any, headers: dict[str, str]) -> None:
    await grant(http, rule("impersonate", "users serviceaccounts"))
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    for user in ("bob", "system:serviceaccount:default:default"):
        as_user = {"Impersonate-User": user}
        assert (await http("POST", path, {}, token=JANE, headers=as_user)).status == 201
        response = await http("POST", path, {}, token=JANE, headers={**as_user, **headers})
        assert (response.status, 'User "jane" cannot impersonate' in response.body["message"]) == (403, True)


async def test_groups_without_an_impersonated_user_are_rejected(http: Any) -> None:
    response = await http("GET", CMS, headers={"Impersonate-Group": "devs"})
    assert (response.status, response.body["message"]) == (400, "requested groups without impersonating a user")


async def test_an_impersonated_service_account_has_its_groups(http: Any) -> None:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = await http("POST", path, {}, headers={"Impersonate-User": "system:serviceaccount:default:default"})
    groups = review.body["status"]["userInfo"]["groups"]
    assert groups == ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]


async def test_a_role_that_does_not_exist_cannot_be_bound(http: Any) -> None:
    await grant(http, rule("create", "rolebindings clusterrolebindings", "rbac.authorization.k8s.io"))
    for kind, plural in (("Role", "roles"), ("ClusterRole", "clusterroles")):
        binding = {
            "metadata": {"name": "future"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "future"},
            "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
        }
        path = f"{RBAC}/namespaces/default/rolebindings"
        response = await http("POST", path, binding, token=JANE)
        message = f'{plural}.rbac.authorization.k8s.io "future" not found'
        assert (response.status, response.body["message"]) == (404, message)
        await grant(http, rule("bind", plural, "rbac.authorization.k8s.io", resourceNames=["future"]), name=plural)
        assert (await http("POST", path, binding, token=JANE)).status == 201
        await http("DELETE", f"{path}/future")
