"""The strategies of `slo-controller-config` and of NodeSLO (spec 01 §6).

Structs: `threshold`, `resourceqos`, `node` (these three are part of NodeSLO and exported here), `colocation`,
`normalization`; `documents` has the documents of the ConfigMap. Functions: `defaults` (of manager and koordlet),
`merge` (cluster and node entries), `configmap` (loading the ConfigMap), `webhook` (validation), `extensions`. All are
pure.
"""

from koordlet.api.sloconfig.node import (
    CgroupPath,
    CPUBurstConfig,
    CPUBurstStrategy,
    HostApplicationSpec,
    HostApplicationStrategy,
    SystemStrategy,
)
from koordlet.api.sloconfig.resourceqos import (
    CPUQOS,
    BlkIOQOS,
    BlockConfig,
    IOConfig,
    MemoryQOS,
    NetworkQOS,
    PodBlkIOQOS,
    PodMemoryQOS,
    ResctrlQOS,
    ResourceQOS,
    ResourceQOSPolicies,
    ResourceQOSStrategy,
)
from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy

__all__ = [
    "CPUQOS",
    "BlkIOQOS",
    "BlockConfig",
    "CPUBurstConfig",
    "CPUBurstStrategy",
    "CgroupPath",
    "HostApplicationSpec",
    "HostApplicationStrategy",
    "IOConfig",
    "MemoryQOS",
    "NetworkQOS",
    "PodBlkIOQOS",
    "PodMemoryQOS",
    "ResctrlQOS",
    "ResourceQOS",
    "ResourceQOSPolicies",
    "ResourceQOSStrategy",
    "ResourceThresholdStrategy",
    "SystemStrategy",
]
