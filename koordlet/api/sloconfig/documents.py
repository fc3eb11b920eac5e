"""The documents of the NodeSLO keys of `slo-controller-config` (spec 01 §6.1).

A document has a cluster strategy and node entries; an entry has `name`, `nodeSelector` and the strategy's fields.
"""

from __future__ import annotations

from typing import Final

from koordlet.api.encoding.base import Frozen
from koordlet.api.meta import LabelSelector
from koordlet.api.sloconfig.node import CPUBurstStrategy, HostApplicationSpec, SystemStrategy
from koordlet.api.sloconfig.resourceqos import ResourceQOSStrategy
from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy

COLOCATION_KEY: Final = "colocation-config"
THRESHOLD_KEY: Final = "resource-threshold-config"
QOS_KEY: Final = "resource-qos-config"
CPU_BURST_KEY: Final = "cpu-burst-config"
SYSTEM_KEY: Final = "system-config"
HOST_APPLICATION_KEY: Final = "host-application-config"
NORMALIZATION_KEY: Final = "cpu-normalization-config"
AMPLIFICATION_KEY: Final = "resource-amplification-config"

KEYS: Final = (
    COLOCATION_KEY,
    THRESHOLD_KEY,
    QOS_KEY,
    CPU_BURST_KEY,
    SYSTEM_KEY,
    HOST_APPLICATION_KEY,
    NORMALIZATION_KEY,
    AMPLIFICATION_KEY,
)
"""The keys of Koordinator; other keys belong to extension plug-ins."""


class NodeThresholdStrategy(ResourceThresholdStrategy):
    """A node entry of `resource-threshold-config`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class ThresholdConfig(Frozen):
    """`resource-threshold-config`."""

    cluster_strategy: ResourceThresholdStrategy | None = None
    node_strategies: list[NodeThresholdStrategy] = []


class NodeQOSStrategy(ResourceQOSStrategy):
    """A node entry of `resource-qos-config`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class QOSConfig(Frozen):
    """`resource-qos-config`."""

    cluster_strategy: ResourceQOSStrategy | None = None
    node_strategies: list[NodeQOSStrategy] = []


class NodeCPUBurstStrategy(CPUBurstStrategy):
    """A node entry of `cpu-burst-config`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class CPUBurstDocument(Frozen):
    """`cpu-burst-config`."""

    cluster_strategy: CPUBurstStrategy | None = None
    node_strategies: list[NodeCPUBurstStrategy] = []


class NodeSystemStrategy(SystemStrategy):
    """A node entry of `system-config`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class SystemConfigDocument(Frozen):
    """`system-config`."""

    cluster_strategy: SystemStrategy | None = None
    node_strategies: list[NodeSystemStrategy] = []


class NodeHostApplications(Frozen):
    """A node entry of `host-application-config`; it replaces the cluster's list."""

    name: str = ""
    node_selector: LabelSelector | None = None
    applications: list[HostApplicationSpec] = []


class HostApplicationConfig(Frozen):
    """`host-application-config`."""

    applications: list[HostApplicationSpec] = []
    node_configs: list[NodeHostApplications] = []
