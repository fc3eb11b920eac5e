"""The webhooks of nodes and of the SLO ConfigMap: caches in, the rules, an answer out (spec 04 §14, §15)."""

from __future__ import annotations

import msgspec

from control.manager.context import Context
from control.manager.webhooks.nodes import amplified, label_conflict
from control.manager.webhooks.objects import Json
from control.manager.webhookserver import jsonpatch
from control.manager.webhookserver.admission import (
    CREATE,
    DELETE,
    UPDATE,
    AdmissionRequest,
    Allowed,
    Denied,
    Handler,
    Patched,
    Response,
)
from control.manager.webhookserver.metrics import MUTATE, VALIDATE, WebhookMetrics
from koordlet.api.core import ConfigMap, Node
from koordlet.api.encoding.wire import WireError
from koordlet.api.sloconfig.webhook import validate
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class MutateNodeStatus(Handler):
    """`/mutate-node-status`: amplified allocatable. Never the reason why a kubelet can't report."""

    path, gate = "/mutate-node-status", "NodeMutatingWebhook"
    resources = frozenset({("", "nodes", "status")})

    def __init__(self, context: Context) -> None:
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: AdmissionRequest) -> Response:
        if request.operation != UPDATE:
            return Allowed()
        request.decode(Node)  # 400 for what is no node
        node: Json = msgspec.json.decode(bytes(request.object))
        old: Json | None = msgspec.json.decode(bytes(request.old_object)) if request.has_old_object else None
        with self._metrics.plugin(MUTATE, "node", request.operation, "NodeResourceAmplificationPlugin"):
            try:
                after = amplified(node, old)
            except WireError as error:
                log.error("Node passes without amplification", node=request.name, err=error)
                return Allowed(warnings=(f"resources are not amplified: {error}",))
        operations = jsonpatch.diff(node, after)
        return Patched(tuple(operations)) if operations else Allowed()


class ValidateNode(Handler):
    """`/validate-node`: labels that two node strategies of one key would take. Creation is only warned of."""

    path, gate = "/validate-node", "NodeValidatingWebhook"
    resources = frozenset({("", "nodes", "")})

    def __init__(self, context: Context) -> None:
        self._config = context.config
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: AdmissionRequest) -> Response:
        if request.operation not in (CREATE, UPDATE):
            return Allowed()
        node = request.decode(Node)
        old = request.decode_old(Node).metadata.labels if request.operation == UPDATE else None
        config = self._config.informer.object
        plugin = "SLOManagerConfigConflictForNode"
        with self._metrics.plugin(VALIDATE, "node", request.operation, plugin) as verdict:
            name, labels = node.metadata.name or request.name, node.metadata.labels
            rejection = label_conflict(config.data if config else None, name, labels, old)
            if rejection is None:
                return Allowed()
            if request.operation == CREATE:
                log.warning("New node is taken by two strategies", node=name, err=rejection)
                return Allowed(warnings=(str(rejection),))
            verdict.rejected = True
        return Denied(str(rejection))


class ValidateConfigMap(Handler):
    """`/validate-configmap`: the SLO ConfigMap and no other."""

    path, gate = "/validate-configmap", "ConfigMapValidatingWebhook"
    resources = frozenset({("", "configmaps", "")})

    def __init__(self, context: Context) -> None:
        self._options = context.options
        self._nodes = context.caches.informer(Node)
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: AdmissionRequest) -> Response:
        options = self._options
        if (request.namespace, request.name) != (options.config_namespace, options.slo_config_name):
            return Allowed()
        if request.operation == DELETE:
            log.warning("SLO configuration is deleted; what is in force stays until the restart", name=request.name)
            return Allowed()
        if request.operation not in (CREATE, UPDATE):
            return Allowed()
        config = request.decode(ConfigMap)
        old = request.decode_old(ConfigMap).data if request.operation == UPDATE else None
        with self._metrics.plugin(VALIDATE, "configmap", request.operation, "SLOConfig") as verdict:
            rejection = validate(
                config.data,
                old,
                nodes={node.metadata.name: node.metadata.labels for node in self._nodes.list()},
                names_needed=options.node_strategy_name_need_check == "true",
                strict_parity=options.strict_parity,
            )
            verdict.rejected = rejection is not None
        return Allowed() if rejection is None else Denied(str(rejection))
