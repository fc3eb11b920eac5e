"""The strategies of `slo-controller-config` and of NodeSLO (spec 01 §6).

Structs: `threshold`, `resourceqos`, `node` (these three are in NodeSLO and exported here), `colocation`,
`normalization`; whole documents: `documents`. What is done with them: `defaults` (both layers), `merge`
(cluster and node entries), `configmap` (the ConfigMap's life), `webhook` (what is refused), `extensions`.
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
