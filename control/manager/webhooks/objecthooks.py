"""The webhooks of nodes and of the SLO ConfigMap (spec 04 §14, §15)."""

from __future__ import annotations

from typing import Final

import msgspec

from control.manager.context import ManagerContext
from control.manager.webhooks.nodes import amplified, label_conflict
from control.manager.webhooks.objects import Json
from control.manager.webhookserver.admission import (
    CREATE,
    DELETE,
    UPDATE,
    AllowResponse,
    DenyResponse,
    Response,
    WebhookHandler,
    WebhookRequest,
    patch_response,
)
from control.manager.webhookserver.metrics import MUTATE, VALIDATE, WebhookMetrics
from koordlet.api.core import ConfigMap, Node
from koordlet.api.encoding.wire import WireError
from koordlet.api.sloconfig.webhook import validate
from koordlet.app.logging import get_logger

log = get_logger(__name__)


_NODE_USER: Final = "system:node:"
"""Prefix of the user name of a kubelet."""


class MutateNodeStatus(WebhookHandler):
    """`/mutate-node-status`: amplifies allocatable. It never refuses, so that it cannot block kubelets."""

    path, gate = "/mutate-node-status", "NodeMutatingWebhook"
    resources = frozenset({("", "nodes", "status")})

    def __init__(self, context: ManagerContext) -> None:
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation != UPDATE:
            return AllowResponse()
        request.decode(Node)  # 400 for an invalid Node
        node: Json = msgspec.json.decode(bytes(request.object))
        old: Json | None = msgspec.json.decode(bytes(request.old_object)) if request.has_old_object else None
        with self._metrics.plugin(MUTATE, "node", request.operation, "NodeResourceAmplificationPlugin"):
            try:
                reported = request.user_info.username == f"{_NODE_USER}{request.name}"
                after = amplified(node, old, reported=reported)
            except WireError as error:
                log.error("Cannot amplify a node, admitting it unchanged", node=request.name, err=error)
                return AllowResponse(warnings=(f"resources are not amplified: {error}",))
        return patch_response(node, after)


class ValidateNode(WebhookHandler):
    """`/validate-node`: refuses labels that match two node strategies of one key; a creation only gets a warning."""

    path, gate = "/validate-node", "NodeValidatingWebhook"
    resources = frozenset({("", "nodes", "")})

    def __init__(self, context: ManagerContext) -> None:
        self._config = context.config
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation not in (CREATE, UPDATE):
            return AllowResponse()
        node = request.decode(Node)
        old = request.decode_old(Node).metadata.labels if request.operation == UPDATE else None
        config = self._config.informer.object
        plugin = "SLOManagerConfigConflictForNode"
        with self._metrics.plugin(VALIDATE, "node", request.operation, plugin) as outcome:
            name, labels = node.metadata.name or request.name, node.metadata.labels
            rejection = label_conflict(config.data if config else None, name, labels, old)
            if rejection is None:
                return AllowResponse()
            if request.operation == CREATE:
                log.warning("A new node matches two strategies", node=name, err=rejection)
                return AllowResponse(warnings=(str(rejection),))
            outcome.rejected = True
        return DenyResponse(str(rejection))


class ValidateConfigMap(WebhookHandler):
    """`/validate-configmap`: validates the SLO ConfigMap and no other."""

    path, gate = "/validate-configmap", "ConfigMapValidatingWebhook"
    resources = frozenset({("", "configmaps", "")})

    def __init__(self, context: ManagerContext) -> None:
        self._options = context.options
        self._nodes = context.caches.informer(Node)
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: WebhookRequest) -> Response:
        options = self._options
        if (request.namespace, request.name) != (options.config_namespace, options.slo_config_name):
            return AllowResponse()
        if request.operation == DELETE:
            log.warning("The SLO ConfigMap is deleted, its settings stay in force until the restart", name=request.name)
            return AllowResponse()
        if request.operation not in (CREATE, UPDATE):
            return AllowResponse()
        config = request.decode(ConfigMap)
        old = request.decode_old(ConfigMap).data if request.operation == UPDATE else None
        with self._metrics.plugin(VALIDATE, "configmap", request.operation, "SLOConfig") as outcome:
            rejection = validate(
                config.data,
                old,
                nodes={node.metadata.name: node.metadata.labels for node in self._nodes.list()},
                names_needed=options.node_strategy_name_need_check == "true",
                strict_parity=options.strict_parity,
            )
            outcome.rejected = rejection is not None
        return AllowResponse() if rejection is None else DenyResponse(str(rejection))
