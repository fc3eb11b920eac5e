"""Feature gates of every component: default and stage (spec 01 §7.1-§7.3).

Tables only; `koordlet.app.gates.FeatureGates` holds the values of a process. `KOORDLET` combines the gates of the agent
and of its runtime hooks, which share one flag. The manager and the descheduler share one table.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Stage = Literal["alpha", "beta", "ga"]


class Gate(NamedTuple):
    """Default and stage of one gate."""

    default: bool
    stage: Stage


def _off(*names: str) -> dict[str, Gate]:
    return dict.fromkeys(names, Gate(False, "alpha"))


def _on(*names: str, stage: Stage = "beta") -> dict[str, Gate]:
    return dict.fromkeys(names, Gate(True, stage))


THRESHOLD_GATES: Final = frozenset(
    {
        "BECPUSuppress",
        "BECPUEvict",
        "BEMemoryEvict",
        "CPUEvict",
        "MemoryEvict",
        "CPUAllocatableEvict",
        "MemoryAllocatableEvict",
    }
)
"""Gates that also need `resourceUsedThresholdWithBE.enable` in the node's NodeSLO."""

KOORDLET_HOOKS: Final[dict[str, Gate]] = {
    **_on("GroupIdentity", "CPUSetAllocator", "BatchResource"),
    **_off(
        "GPUEnvInject",
        "RDMADeviceInject",
        "CPUNormalization",
        "CoreSched",
        "TerwayQoS",
        "TCNetworkQoS",
        "Resctrl",
        "OOMScoreAdj",
    ),
}
"""One gate per runtime-hook plug-in."""

KOORDLET: Final[dict[str, Gate]] = {
    **_on("BECPUSuppress", "CPUBurst", "RdtResctrl", "NodeTopologyReport"),
    **_on("InterferenceActions"),  # not in Koordinator
    **_off(
        "BECPUManager",
        "BECPUEvict",
        "BEMemoryEvict",
        "CPUEvict",
        "MemoryEvict",
        "CPUAllocatableEvict",
        "MemoryAllocatableEvict",
        "SystemConfig",
        "CgroupReconcile",
        "BlkIOReconcile",
        "Accelerators",
        "RDMADevices",
        "HamiCoreVGPUMonitor",
        "CPICollector",
        "Libpfm4",
        "PSICollector",
        "ResctrlCollector",
        "ColdPageCollector",
        "HugePageReport",
        "PodResourcesProxy",
        "PerCPUMetric",
        "NodeMetricPromMetrics",
        "AuditEvents",
        "AuditEventsHTTPHandler",
    ),
    **KOORDLET_HOOKS,
}

_TRANSFORMERS = _off("PriorityTransformer", "PreemptionPolicyTransformer", "ReplaceResourcesTransformer")

MANAGER: Final[dict[str, Gate]] = {
    **_on(
        "PodMutatingWebhook",
        "PodValidatingWebhook",
        "ElasticMutatingWebhook",  # sic: Koordinator's names of the two quota webhooks do not contain "Quota"
        "ElasticValidatingWebhook",
        "WebhookFramework",
        "ValidatePodTrustedKeys",  # not in Koordinator
    ),
    **_off(
        "NodeMutatingWebhook",
        "NodeValidatingWebhook",
        "ConfigMapValidatingWebhook",
        "ReservationMutatingWebhook",
        "ColocationProfileSkipMutatingResources",
        "ColocationProfileSkipValidatingPriority",
        "MultiQuotaTree",
        "ElasticQuotaIgnorePodOverhead",
        "ElasticQuotaGuaranteeUsage",
        "ElasticQuotaEnableUpdateResourceKey",
        "ElasticQuotaEvaluationTransformPod",
        "DisableDefaultQuota",
        "SupportParentQuotaSubmitPod",
        "EnableQuotaAdmission",
        "EnableQuotaAdmissionOnUpdate",
        "EnableSyncGPUSharedResource",
        "ColocationProfileController",
        "ValidatePodDeviceResource",
        "EnablePodEnhancedValidator",
        "DisableExtendedResourceSpec",
        "DisableDeviceResourceSpec",
        "Recommender",
        "BindingAdmissionWebhook",
    ),
    **_TRANSFORMERS,
    "DisablePVCReservation": Gate(False, "beta"),
}

DESCHEDULER: Final = MANAGER

SCHEDULER: Final[dict[str, Gate]] = {
    **_on("DynamicSchedulerCheck", stage="alpha"),
    **_on("GangPendingPodsConditionPatch", "EnableBatchScheduleNodeSnapshot"),
    **_on("CSIStorageCapacity", "GenericEphemeralVolume", "PodDisruptionBudget", stage="ga"),
    **_off(
        "CompatibleCSIStorageCapacity",
        "DisableCSIStorageCapacityInformer",
        "CompatiblePodDisruptionBudget",
        "DisablePodDisruptionBudgetInformer",
        "DisableDynamicResourceAllocationInformer",
        "ResizePod",
        "MultiQuotaTree",
        "ElasticQuotaIgnorePodOverhead",
        "ElasticQuotaIgnoreTerminatingPod",
        "ElasticQuotaImmediateIgnoreTerminatingPod",
        "ElasticQuotaGuaranteeUsage",
        "DisableDefaultQuota",
        "SupportParentQuotaSubmitPod",
        "LazyReservationRestore",
        "OmitNodeLabelsForReservation",
        "SkipReservationFitsNode",
        "DevicePluginAdaption",
        "CleanExpiredReservationAllocated",
        "SkipFilterWithNominatedPods",
        "SyncBarrier",
        "CrossSchedulerNomination",
        "EnableInlineBatchSchedule",
    ),
    **_TRANSFORMERS,
}
