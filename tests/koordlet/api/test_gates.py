"""The gate tables, pinned, and the NodeSLO switch over seven of them (spec 01 §7.1-§7.3, §10)."""

from __future__ import annotations

from koordlet.api import gates
from koordlet.api.gates import Gate

KOORDLET_ON = {
    "BECPUSuppress", "CPUBurst", "RdtResctrl", "NodeTopologyReport",
    "GroupIdentity", "CPUSetAllocator", "BatchResource", "InterferenceActions",
}  # fmt: skip
MANAGER_ON = {
    "PodMutatingWebhook", "PodValidatingWebhook", "ElasticMutatingWebhook", "ElasticValidatingWebhook",
    "WebhookFramework", "ValidatePodTrustedKeys", "ValidateMigrationJobRights", "ValidateDrainRights",
}  # fmt: skip


def test_koordlet() -> None:
    assert {name for name, gate in gates.KOORDLET.items() if gate.default} == KOORDLET_ON
    assert all(
        gate == (Gate(True, "beta") if gate.default else Gate(False, "alpha")) for gate in gates.KOORDLET.values()
    )
    assert set(gates.KOORDLET) - KOORDLET_ON == {
        "PeerComparison",
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
        "ResourceSlices",
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
        "GPUEnvInject",
        "RDMADeviceInject",
        "CPUNormalization",
        "CoreSched",
        "TerwayQoS",
        "TCNetworkQoS",
        "Resctrl",
        "OOMScoreAdj",
    }


def test_manager_and_descheduler() -> None:
    assert {name for name, gate in gates.MANAGER.items() if gate.default} == MANAGER_ON
    assert set(gates.MANAGER) - MANAGER_ON == {
        "PeerComparison",
        "JobQueueing",
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
        "BindingAdmissionWebhook",
        "Recommender",
        "PriorityTransformer",
        "PreemptionPolicyTransformer",
        "ReplaceResourcesTransformer",
        "DisablePVCReservation",
    }
    betas = {name for name, gate in gates.MANAGER.items() if gate.stage == "beta"}
    assert betas == MANAGER_ON | {"DisablePVCReservation"}
    assert {**gates.MANAGER, "DrainController": gates.Gate(False, "alpha")} == {**gates.DESCHEDULER}


def test_scheduler() -> None:
    on = {name: gate.stage for name, gate in gates.SCHEDULER.items() if gate.default}
    assert on == {
        "DynamicSchedulerCheck": "alpha",
        "GangPendingPodsConditionPatch": "beta",
        "EnableBatchScheduleNodeSnapshot": "beta",
        "CSIStorageCapacity": "ga",
        "GenericEphemeralVolume": "ga",
        "PodDisruptionBudget": "ga",
    }
    assert set(gates.SCHEDULER) - set(on) == {
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
        "PriorityTransformer",
        "PreemptionPolicyTransformer",
        "ReplaceResourcesTransformer",
    }
