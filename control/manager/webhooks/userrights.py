"""Whether the user of a request has rights itself, by a query to the API server (SubjectAccessReview):
koord-descheduler carries out with its own rights what users' objects request.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from control.manager.context import ManagerContext
from control.manager.webhookserver.admission import (
    CREATE,
    UPDATE,
    AllowResponse,
    DenyResponse,
    RequestUser,
    Response,
    WebhookHandler,
    WebhookRequest,
)
from control.manager.webhookserver.metrics import VALIDATE, WebhookMetrics
from koordlet.kube import Client

Attributes = dict[str, str]
"""`resourceAttributes` of a SubjectAccessReview."""


class UserRightsHandler(WebhookHandler):
    """Refuses objects whose user lacks a right that koord-descheduler uses for them."""

    label: ClassVar[str]
    """Of the kind, in metrics."""
    kinds: ClassVar[Mapping[str, type[Any]]]
    """By plural name."""

    def __init__(self, context: ManagerContext) -> None:
        self._client = context.client
        self._metrics = WebhookMetrics.of(context.internal)

    @staticmethod
    @abstractmethod
    def needed(new: Any, old: Any, /) -> list[Attributes]:
        """The rights without which a user may not make the object `new`, or change `old` (None at a creation) to it."""

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation not in (CREATE, UPDATE):
            return AllowResponse()
        kind = self.kinds[request.resource.resource]
        new = request.decode(kind)
        old = request.decode_old(kind) if request.operation == UPDATE else None
        with self._metrics.plugin(VALIDATE, self.label, request.operation, "Rights") as outcome:
            response = await reviewed(self._client, request.user_info, self.needed(new, old), kind.__name__)
            outcome.rejected = isinstance(response, DenyResponse)
        return response


async def reviewed(client: Client, user: RequestUser, rights: Iterable[Attributes], kind: str) -> Response:
    """403 for the first right that the user lacks. Raises KubeError, which the server answers with 500."""
    for right in rights:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = json.loads(await client.raw("POST", path, body=review(user, right)))
        if not (answer.get("status") or {}).get("allowed"):
            return DenyResponse(refusal(user.username, right, kind), code=403, reason="Forbidden")
    return AllowResponse()


def refusal(user: str, right: Attributes, kind: str) -> str:
    """The message for a right that the user of an object of this kind lacks."""
    resource = "/".join(part for part in (right["resource"], right.get("subresource", "")) if part)
    place = f" in namespace {right['namespace']!r}" if right.get("namespace") else ""
    name = f" {right['name']!r}" if right.get("name") else ""
    return f"user {user!r} may not {right['verb']} {resource}{name}{place}, which this {kind} would do"


def review(user: RequestUser, right: Attributes) -> dict[str, Any]:
    """The SubjectAccessReview."""
    who = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**who, "resourceAttributes": right},
    }
