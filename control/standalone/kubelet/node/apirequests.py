"""The kubelet's requests to the API server, with plain JSON objects.

Plain JSON, because /pods has to return a pod with every field, and because a kubelet needs fields (probes, lifecycle
hooks) that koordlet's structs leave out. All requests go through one `ApiCaller`, which tests replace. Errors are
those of `koordlet.kube`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Protocol

from koordlet.kube.errors import KubeError, NotFound

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
LEASE_NAMESPACE = "kube-node-lease"


class ApiCaller(Protocol):
    """One HTTP request to the API server; raises `KubeError` and its subclasses."""

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
    ) -> dict[str, Any]: ...


class NodeApi:
    def __init__(self, caller: ApiCaller, node_name: str) -> None:
        self._call = caller.call
        self._node = node_name

    async def get_node(self) -> dict[str, Any] | None:
        try:
            return await self._call("GET", f"/api/v1/nodes/{self._node}")
        except NotFound:
            return None

    async def create_node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        return await self._call("POST", "/api/v1/nodes", node)

    async def patch_node(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        return await self._call("PATCH", f"/api/v1/nodes/{self._node}", patch, content_type=STRATEGIC)

    async def patch_node_status(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        return await self._call("PATCH", f"/api/v1/nodes/{self._node}/status", patch, content_type=STRATEGIC)

    async def renew_lease(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        """Set the spec of the node's lease; create the lease if it is missing."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
        try:
            patch = {"spec": lease["spec"]}
            return await self._call("PATCH", f"{path}/{self._node}", patch, content_type=MERGE)
        except NotFound:
            return await self._call("POST", path, lease)

    async def patch_pod_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """The patch has the uid, so that the server rejects it (409) when the name belongs to another pod."""
        body = {"metadata": {"uid": uid}, "status": status}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        return await self._call("PATCH", path, body, content_type=STRATEGIC)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """The last step of a graceful deletion."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        }
        await self._call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", options)

    async def config_data(self, kind: str, namespace: str, name: str) -> dict[str, str] | None:
        """Data of a ConfigMap or Secret as text; None when there is no such object."""
        plural = {"ConfigMap": "configmaps", "Secret": "secrets"}[kind]
        try:
            source = await self._call("GET", f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        except NotFound:
            return None
        data = source.get("data") or {}
        if kind == "ConfigMap":
            return {str(k): str(v) for k, v in data.items()}
        try:
            return {str(k): base64.b64decode(v, validate=True).decode() for k, v in data.items()}
        except (binascii.Error, UnicodeDecodeError) as error:
            raise KubeError(f"secret {namespace}/{name}: data is not base64 of text") from error

    async def account_token(self, pod: Mapping[str, str], account: str, audience: str, seconds: int) -> str:
        """A token of a ServiceAccount that is valid while the pod (namespace, name, uid) exists."""
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
        spec = {"expirationSeconds": seconds, "boundObjectRef": reference}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {**spec, "audiences": [audience]} if audience else spec,
        }
        path = f"/api/v1/namespaces/{pod['namespace']}/serviceaccounts/{account}/token"
        return str((await self._call("POST", path, body))["status"]["token"])

    async def token_review(self, token: str) -> dict[str, Any]:
        """`status` of a TokenReview: {"authenticated": …, "user": {…}}."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        review = await self._call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
        return dict(review.get("status") or {})

    async def may(self, user: Mapping[str, Any], verb: str, subresource: str) -> bool:
        """Whether this user may do `verb` on nodes/<subresource> of this node."""
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "resourceAttributes": {
                "verb": verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": subresource,
                "name": self._node,
            },
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        review = await self._call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        return bool((review.get("status") or {}).get("allowed"))
