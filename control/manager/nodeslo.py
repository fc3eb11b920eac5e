"""Writes NodeSLO.spec, the QoS configuration of each koordlet, rendered from `slo-controller-config` (spec 04 §5).

Each part of the spec is computed separately. A part that cannot be computed keeps its value in the NodeSLO, is counted
and logged, and does not affect the others. Extension keys that belong to no registered plug-in are preserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.manager.config import EXTENSIONS
from control.manager.context import ManagerContext
from control.manager.metrics import FAILED, SUCCEEDED, ManagerMetrics
from control.manager.nodeobjects import NodeObjectController
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeSLO, NodeSLOSpec, extension_values
from koordlet.api.encoding import wire
from koordlet.api.meta import ObjectMeta
from koordlet.api.sloconfig import configmap
from koordlet.api.sloconfig.configmap import SLOConfig
from koordlet.api.sloconfig.extensions import extensions_for_node
from koordlet.api.sloconfig.node import SystemStrategy
from koordlet.app.logging import get_logger

log = get_logger(__name__)


def system_strategy(
    config: SLOConfig, labels: Mapping[str, str], annotations: Mapping[str, str], *, strict_parity: bool
) -> tuple[SystemStrategy | None, bool]:
    """(strategy, whether the bandwidth annotation is valid).

    If the bandwidth annotation is not a quantity, the configured strategy stays; Koordinator, and `strict_parity`,
    then omit the strategy.
    """
    assert config.system is not None
    strategy = configmap.system_for_node(config.system, labels, annotations)
    if strategy is not None:
        return strategy, True
    return (None if strict_parity else config.system.for_node(labels)), False


class NodeSLOController(NodeObjectController[NodeSLO]):
    """See the module docstring. Owns all of `spec`."""

    name = "nodeslo"
    kind = NodeSLO
    annotations = (names.ANNOTATION_NETWORK_BANDWIDTH,)

    def __init__(self, context: ManagerContext) -> None:
        metrics = ManagerMetrics.of(context.internal)
        super().__init__(context, metrics.node_slo)
        self._parsed = metrics.node_slo_parse

    def desired(self, node: Node, existing: NodeSLO | None) -> Mapping[str, Any] | None:
        config = self.context.config.current
        if not config.node_slo_available:
            return None
        spec: Mapping[str, Any] = wire.to_builtins(self._spec(config, node, existing))
        return spec

    def owned(self, existing: NodeSLO) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = wire.to_builtins(existing.spec)
        return spec

    def new(self, name: str, spec: Mapping[str, Any]) -> NodeSLO:
        return NodeSLO(metadata=ObjectMeta(name=name), spec=wire.convert(spec, NodeSLOSpec))

    def _spec(self, config: SLOConfig, node: Node, existing: NodeSLO | None) -> NodeSLOSpec:
        labels, annotations = node.metadata.labels, node.metadata.annotations
        bad = self.context.config.bad
        # `SLOConfig.node_slo_available` holds
        assert config.threshold and config.qos and config.cpu_burst and config.host_applications
        system, system_ok = system_strategy(
            config, labels, annotations, strict_parity=self.context.options.strict_parity
        )
        if not system_ok:
            log.once(
                f"bandwidth:{node.metadata.name}",
                "Ignoring an annotation that is not a quantity, using the configured bandwidth",
                node=node.metadata.name,
                annotation=names.ANNOTATION_NETWORK_BANDWIDTH,
                value=annotations.get(names.ANNOTATION_NETWORK_BANDWIDTH),
            )
        kept = extension_values(existing.spec.extensions) if existing is not None else {}
        values, errors = extensions_for_node(EXTENSIONS, labels, self.context.config.extension_values, kept)
        for plugin, message in errors.items():
            log.warning(
                "Cannot compute an extension, keeping its value", node=node.metadata.name, plugin=plugin, reason=message
            )
        for part, ok in (
            ("getResourceThresholdSpec", True),
            ("getResourceQOSSpec", True),
            ("getCPUBurstConfigSpec", True),
            ("getSystemConfigSpec", system_ok),
            ("getHostApplicationConfig", True),
            ("getNodeSLOExtension", not errors),
        ):
            key = _KEYS.get(part, "")
            self._parsed.labels(SUCCEEDED if ok and key not in bad else FAILED, part).inc()
        return NodeSLOSpec(
            resource_used_threshold_with_be=config.threshold.for_node(labels),
            resource_qos_strategy=config.qos.for_node(labels),
            cpu_burst_strategy=config.cpu_burst.for_node(labels),
            system_strategy=system,
            host_applications=list(config.host_applications.for_node(labels)),
            extensions={"Object": values} if values else None,
        )


_KEYS = {
    "getResourceThresholdSpec": "resource-threshold-config",
    "getResourceQOSSpec": "resource-qos-config",
    "getCPUBurstConfigSpec": "cpu-burst-config",
    "getSystemConfigSpec": "system-config",
    "getHostApplicationConfig": "host-application-config",
}
