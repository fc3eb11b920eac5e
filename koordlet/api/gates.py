"""Feature gates of every component: default and stage (spec 01 §7.1-§7.3).

Tables only; `koordlet.app.gates.FeatureGates` holds the values of a process. `KOORDLET` combines the gates of the agent
and of its runtime hooks, which share one flag. The descheduler has the gates of the manager, and one more.
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
"""One gate per runtime-hook plug-in. The effect of each:

GroupIdentity: Sets the CPU identity (bvt) of pods by QoS class; on stock kernels cpu.idle of best effort.
CPUSetAllocator: Applies the CPUs that the scheduler allocated, and shared CPU pools.
BatchResource: Sets CPU shares, CPU quota and memory limit of pods that request batch resources.
GPUEnvInject: Passes allocated GPUs to containers in environment variables.
RDMADeviceInject: Passes the device nodes of allocated RDMA devices to containers.
CPUNormalization: Scales the CPU quota of LS and unlabelled pods by the node's normalization ratio.
CoreSched: Sets core-scheduling cookies: pods of different groups do not share a core.
TerwayQoS: Writes the network limits for Terway (policy terway-qos).
TCNetworkQoS: Shapes network traffic with tc (policy tc).
Resctrl: Applies the cache and memory bandwidth that a pod's annotation requests.
OOMScoreAdj: Applies the OOM scores of a pod's annotations.
"""

KOORDLET: Final[dict[str, Gate]] = {
    **_on("BECPUSuppress", "CPUBurst", "RdtResctrl", "NodeTopologyReport"),
    **_on("InterferenceActions"),  # not in Koordinator
    **_off("PeerComparison"),  # not in Koordinator
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
        "ResourceSlices",  # not in Koordinator
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
"""The effect of each:

BECPUSuppress: Limits the CPUs of best-effort pods by the usage of the node.
CPUBurst: Lets pods exceed their CPU limit for a short time.
RdtResctrl: Limits last-level cache and memory bandwidth by QoS class.
NodeTopologyReport: Writes the NodeResourceTopology; when off it is only computed for koordlet itself.
InterferenceActions: Throttles best-effort pods that delay services, if the node's strategy enables actions.
PeerComparison: Reports each container's performance in NodeMetric, for koord-manager's gate of that name.
BECPUManager: The hooks place best-effort containers that have a NUMA allocation; CPU suppress leaves them alone.
BECPUEvict: Evicts best-effort pods while they get too little CPU.
BEMemoryEvict: Evicts best-effort pods while the node's memory usage is too high.
CPUEvict: Evicts pods of low priority while the node's CPU usage is too high.
MemoryEvict: Evicts pods of low priority while the node's memory usage is too high.
CPUAllocatableEvict: Evicts pods of low priority while batch or mid CPU requests exceed the allocatable.
MemoryAllocatableEvict: Evicts pods of low priority while batch or mid memory requests exceed the allocatable.
SystemConfig: Sets kernel parameters by systemStrategy.
CgroupReconcile: Applies memory QoS, and reclaims memory in the background on stock kernels.
BlkIOReconcile: Applies limits and weights of block I/O, and collects disks and mounts.
Accelerators: Collects and reports GPUs and other accelerators.
RDMADevices: Collects and reports RDMA NICs.
ResourceSlices: Also publishes the reported devices as ResourceSlices. Nothing prepares them: pods wait at the kubelet.
HamiCoreVGPUMonitor: GPUEnvInject also shares HAMi-core's usage files with the host, for its monitor.
CPICollector: Measures cycles per instruction.
Libpfm4: No effect.
PSICollector: Collects pressure (PSI). koordlet turns it on unless the flag sets it to false.
ResctrlCollector: Collects cache occupancy and memory bandwidth; also needs --enable-resctrl-collector.
ColdPageCollector: Collects cold memory.
HugePageReport: Reports huge pages separately in the NodeResourceTopology.
PodResourcesProxy: Serves the kubelet's pod-resources API with the scheduler's devices added.
PerCPUMetric: Exports a gauge per CPU of the shared pools.
NodeMetricPromMetrics: Exports the last NodeMetric report as gauges.
AuditEvents: Writes the audit log.
AuditEventsHTTPHandler: Serves the audit log at /events.
"""

_TRANSFORMERS = _off("PriorityTransformer", "PreemptionPolicyTransformer", "ReplaceResourcesTransformer")

MANAGER: Final[dict[str, Gate]] = {
    **_on(
        "PodMutatingWebhook",
        "PodValidatingWebhook",
        "ElasticMutatingWebhook",  # sic: Koordinator's names of the two quota webhooks do not contain "Quota"
        "ElasticValidatingWebhook",
        "WebhookFramework",
        "ValidatePodTrustedKeys",  # not in Koordinator
        "ValidateMigrationJobRights",  # not in Koordinator
        "ValidateDrainRights",  # not in Koordinator
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
        "PeerComparison",  # not in Koordinator
        "JobQueueing",  # a design in Koordinator
        "BindingAdmissionWebhook",
    ),
    **_TRANSFORMERS,
    "DisablePVCReservation": Gate(False, "beta"),
}
"""The effect of each:

PodMutatingWebhook: Applies profiles and other defaults to new pods.
PodValidatingWebhook: Validates pods and bindings.
ElasticMutatingWebhook: Sets parent, tree and shared weight of new ElasticQuotas.
ElasticValidatingWebhook: Validates ElasticQuotas.
WebhookFramework: Runs the webhook server and manages its certificates.
ValidatePodTrustedKeys: Refuses labels and annotations that root code acts on, by users that are not trusted with them.
ValidateMigrationJobRights: Refuses PodMigrationJobs of users who may not evict the pod themselves.
ValidateDrainRights: Refuses DrainNodes and DrainNodeGroups of users who may not drain the nodes themselves.
NodeMutatingWebhook: Amplifies the allocatable of nodes.
NodeValidatingWebhook: Refuses node labels that match two node strategies of one ConfigMap key.
ConfigMapValidatingWebhook: Validates the ConfigMap slo-controller-config.
ReservationMutatingWebhook: Applies profiles to new Reservations.
ColocationProfileSkipMutatingResources: Profiles do not translate cpu and memory to batch and mid resources.
ColocationProfileSkipValidatingPriority: The sub-priority of a pod may change.
MultiQuotaTree: Restricts pods of a quota tree to the nodes of the tree.
ElasticQuotaIgnorePodOverhead: No effect in the manager.
ElasticQuotaGuaranteeUsage: Refuses guarantees of a quota that no ancestor has.
ElasticQuotaEnableUpdateResourceKey: A child's max may lack resources of its parent's max.
ElasticQuotaEvaluationTransformPod: Quota admission renames resources first (with ReplaceResourcesTransformer).
DisableDefaultQuota: A pod without quota label belongs to no quota.
SupportParentQuotaSubmitPod: Pods may belong to a parent quota, and a quota with pods may become a parent.
EnableQuotaAdmission: Refuses pods that exceed their quota.
EnableQuotaAdmissionOnUpdate: Checks the quota also when a pod moves to another quota.
EnableSyncGPUSharedResource: Writes koordinator.sh/gpu.shared to nodes.
ColocationProfileController: Applies profiles to pending pods.
ValidatePodDeviceResource: Refuses invalid device requests.
EnablePodEnhancedValidator: Refuses pods without the labels that a ConfigMap requires.
DisableExtendedResourceSpec: Does not write the annotation extended-resource-spec.
DisableDeviceResourceSpec: Does not translate GPU requests.
Recommender: Recommends requests for workloads.
PeerComparison: Finds replicas that are slower than those on other nodes, by koordlet's gate of that name.
JobQueueing: Jobs with a queue name wait, suspended, until their ElasticQuota has room.
BindingAdmissionWebhook: Restricts which user may bind pods.
PriorityTransformer: No effect in the manager.
PreemptionPolicyTransformer: No effect in the manager.
ReplaceResourcesTransformer: Enables ElasticQuotaEvaluationTransformPod.
DisablePVCReservation: No effect in the manager.
"""

MANAGER_WITHOUT_EFFECT: Final = (
    "ElasticQuotaIgnorePodOverhead",
    "PriorityTransformer",
    "PreemptionPolicyTransformer",
    "DisablePVCReservation",
)
"""koord-manager accepts these gates and does not read them."""

DESCHEDULER: Final[dict[str, Gate]] = {**MANAGER, **_off("DrainController")}
"""The gates of the manager, which Koordinator shares, and this project's own. Those with an effect in the descheduler:

DrainController: Runs drains of nodes: DrainNode and DrainNodeGroup.
DisablePVCReservation: Reservations of migrations have no volumes with PersistentVolumeClaims.
"""

DESCHEDULER_EFFECTIVE: Final = ("DrainController", "DisablePVCReservation")
"""koord-descheduler accepts all gates of `DESCHEDULER`, and asks these."""

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
"""The effect of each:

DynamicSchedulerCheck: Reads a pod again before it is bound, and drops it if it is deleted or of another scheduler.
GangPendingPodsConditionPatch: Writes the conditions of waiting gang members.
EnableInlineBatchSchedule: Places a whole job within one cycle after a plugin planned it.
SyncBarrier: A new leader first waits until it has seen the writes of its predecessor.
MultiQuotaTree: Supports several quota trees; without it the label tree-id is ignored.
DisableDefaultQuota: A pod without a known quota belongs to no quota.
ElasticQuotaGuaranteeUsage: What the pods of a quota use is guaranteed; other quotas get none of its unused min.
ElasticQuotaIgnorePodOverhead: The overhead of pods does not count towards quotas.
ElasticQuotaIgnoreTerminatingPod: A pod stops counting one grace period after its deadline for termination.
ElasticQuotaImmediateIgnoreTerminatingPod: A pod stops counting when its termination begins.
PriorityTransformer: A pod without priority counts with the default of its priority class.
PreemptionPolicyTransformer: A pod's label determines its preemption policy, Never without a valid one.
ReplaceResourcesTransformer: Renames or removes resources of a pod by its annotation replace-resources.
EnableBatchScheduleNodeSnapshot: No effect.
CSIStorageCapacity: No effect.
GenericEphemeralVolume: No effect.
PodDisruptionBudget: No effect.
CompatibleCSIStorageCapacity: No effect.
DisableCSIStorageCapacityInformer: No effect.
CompatiblePodDisruptionBudget: No effect.
DisablePodDisruptionBudgetInformer: No effect.
DisableDynamicResourceAllocationInformer: No effect.
ResizePod: A Reservation of whole GPUs also offers the cores and the memory of its devices.
SupportParentQuotaSubmitPod: Accepted; pods of parent quotas are always counted, and koord-manager admits them.
LazyReservationRestore: No effect.
OmitNodeLabelsForReservation: A reservation affinity selects by the labels of reservations, not of their nodes.
SkipReservationFitsNode: With one matching reservation on a node, only the reservation must have room.
DevicePluginAdaption: Writes what device plugins of vendors read, in addition to device-allocated.
CleanExpiredReservationAllocated: Removes reservation-allocated of pods whose Reservation failed or is gone.
SkipFilterWithNominatedPods: Filters nodes with nominated pods beside these pods only, not also without them.
CrossSchedulerNomination: Leaves room for pods of higher priority that other schedulers nominated.
"""
