"""Facts about the built-in kinds that the model classes don't have: merge rules, enums, quantities, defaults.

Plain tables by `Class.jsonField`. MERGE rows: how server-side apply treats a list (`map:key,key`, `set`;
others are atomic) and how strategic merge patch does (strategy, merge key). The two differ in places, as in
Kubernetes: apply identifies ports by port and protocol, strategic merge patch by port alone.
"""

from __future__ import annotations

from typing import Any


def words(text: str) -> frozenset[str]:
    """The set of the words of a text."""
    return frozenset(text.split())


# class.field                          apply                             strategy            merge key
_MERGE = """
V1ObjectMeta.finalizers                set                               merge               -
V1ObjectMeta.ownerReferences           map:uid                           merge               uid
V1PodSpec.volumes                      map:name                          merge,retainKeys    name
V1PodSpec.initContainers               map:name                          merge               name
V1PodSpec.containers                   map:name                          merge               name
V1PodSpec.ephemeralContainers          map:name                          merge               name
V1PodSpec.imagePullSecrets             map:name                          merge               name
V1PodSpec.hostAliases                  map:ip                            merge               ip
V1PodSpec.topologySpreadConstraints    map:topologyKey,whenUnsatisfiable merge               topologyKey
V1PodSpec.resourceClaims               map:name                          merge,retainKeys    name
V1PodSpec.schedulingGates              map:name                          merge               name
V1PodStatus.conditions                 map:type                          merge               type
V1PodStatus.podIPs                     map:ip                            merge               ip
V1PodStatus.hostIPs                    -                                 merge               ip
V1PodStatus.resourceClaimStatuses      map:name                          merge,retainKeys    name
V1Container.ports                      map:containerPort,protocol        merge               containerPort
V1Container.env                        map:name                          merge               name
V1Container.volumeMounts               map:mountPath                     merge               mountPath
V1Container.volumeDevices              map:devicePath                    merge               devicePath
V1EphemeralContainer.ports             map:containerPort,protocol        merge               containerPort
V1EphemeralContainer.env               map:name                          merge               name
V1EphemeralContainer.volumeMounts      map:mountPath                     merge               mountPath
V1EphemeralContainer.volumeDevices     map:devicePath                    merge               devicePath
V1ContainerStatus.volumeMounts         map:mountPath                     merge               mountPath
V1ResourceRequirements.claims          map:name                          -                   -
V1ServiceSpec.ports                    map:port,protocol                 merge               port
V1ServiceStatus.conditions             map:type                          merge               type
V1ServiceAccount.secrets               map:name                          merge               name
V1NodeSpec.podCIDRs                    set                               merge               -
V1NodeStatus.addresses                 map:type                          merge               type
V1NodeStatus.conditions                map:type                          merge               type
V1NamespaceStatus.conditions           map:type                          merge               type
V1ReplicationControllerStatus.conditions map:type                        merge               type
V1PersistentVolumeClaimStatus.conditions map:type                        merge               type
V1DeploymentSpec.strategy              -                                 retainKeys          -
V1DeploymentStatus.conditions          map:type                          merge               type
V1ReplicaSetStatus.conditions          map:type                          merge               type
V1DaemonSetStatus.conditions           map:type                          merge               type
V1StatefulSetStatus.conditions         map:type                          merge               type
V1JobStatus.conditions                 -                                 merge               type
V1PodDisruptionBudgetStatus.conditions map:type                          merge               type
V1MutatingWebhookConfiguration.webhooks map:name                         merge               name
V1ValidatingWebhookConfiguration.webhooks map:name                       merge               name
V1MutatingWebhook.matchConditions      map:name                          merge               name
V1ValidatingWebhook.matchConditions    map:name                          merge               name
V1CustomResourceDefinitionStatus.conditions map:type                     -                   -
V1APIServiceStatus.conditions          map:type                          merge               type
V2HorizontalPodAutoscalerStatus.conditions map:type                      merge               type
V1CSINodeSpec.drivers                  map:name                          merge               name
V1PodFailurePolicyOnExitCodesRequirement.values set                      -                   -
"""

ATOMIC_OBJECTS = words("""
    V1LabelSelector V1NodeSelector V1NodeSelectorTerm V1TopologySelectorTerm V1LocalObjectReference
    V1ObjectReference V1SecretReference V1ConfigMapKeySelector V1SecretKeySelector V1ObjectFieldSelector
    V1ResourceFieldSelector V1TypedLocalObjectReference V1OwnerReference V1ScopeSelector V1RoleRef RbacV1Subject
    V1EndpointAddress CoreV1EndpointPort DiscoveryV1EndpointPort V1CrossVersionObjectReference
    V1ServiceBackendPort V1FileKeySelector
    """)

ATOMIC_FIELDS = words("""
    V1PodSpec.nodeSelector V1ServiceSpec.selector V1ReplicationControllerSpec.selector
    V1ClusterRole.rules V1RuntimeClass.scheduling V1ControllerRevision.data
    """)

QUANTITIES = words("""
    V1ResourceRequirements.limits V1ResourceRequirements.requests V1VolumeResourceRequirements.limits
    V1VolumeResourceRequirements.requests V1PodSpec.overhead V1Overhead.podFixed V1NodeStatus.capacity
    V1NodeStatus.allocatable V1EmptyDirVolumeSource.sizeLimit V1ResourceFieldSelector.divisor
    V1PersistentVolumeSpec.capacity V1PersistentVolumeClaimStatus.capacity
    V1PersistentVolumeClaimStatus.allocatedResources V1ContainerStatus.allocatedResources
    V1LimitRangeItem.default V1LimitRangeItem.defaultRequest V1LimitRangeItem.max
    V1LimitRangeItem.min V1LimitRangeItem.maxLimitRequestRatio V1ResourceQuotaSpec.hard V1ResourceQuotaStatus.hard
    V1ResourceQuotaStatus.used V2MetricTarget.value V2MetricTarget.averageValue V1CSIStorageCapacity.capacity
    V1CSIStorageCapacity.maximumVolumeSize V2MetricValueStatus.value V2MetricValueStatus.averageValue
    """)

_PULL = ["Always", "IfNotPresent", "Never"]
_PROTOCOLS = ["SCTP", "TCP", "UDP"]
ENUMS: dict[str, list[str]] = {
    "V1PodSpec.restartPolicy": ["Always", "Never", "OnFailure"],
    "V1PodSpec.dnsPolicy": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    "V1PodSpec.preemptionPolicy": ["Never", "PreemptLowerPriority"],
    "V1Container.imagePullPolicy": _PULL,
    "V1Container.terminationMessagePolicy": ["FallbackToLogsOnError", "File"],
    "V1EphemeralContainer.imagePullPolicy": _PULL,
    "V1ContainerPort.protocol": _PROTOCOLS,
    "V1ServicePort.protocol": _PROTOCOLS,
    "V1ServiceSpec.type": ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
    "V1ServiceSpec.sessionAffinity": ["ClientIP", "None"],
    "V1Taint.effect": ["NoExecute", "NoSchedule", "PreferNoSchedule"],
    "V1Toleration.effect": ["NoExecute", "NoSchedule", "PreferNoSchedule"],
    "V1Toleration.operator": ["Equal", "Exists", "Gt", "Lt"],
    "V1NodeSelectorRequirement.operator": ["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"],
    "V1TopologySpreadConstraint.whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"],
    "V1PriorityClass.preemptionPolicy": ["Never", "PreemptLowerPriority"],
    "V1DeploymentStrategy.type": ["Recreate", "RollingUpdate"],
    "V1DaemonSetUpdateStrategy.type": ["OnDelete", "RollingUpdate"],
    "V1StatefulSetUpdateStrategy.type": ["OnDelete", "RollingUpdate"],
    "V1StatefulSetSpec.podManagementPolicy": ["OrderedReady", "Parallel"],
    "V1JobSpec.completionMode": ["Indexed", "NonIndexed"],
    "V1CronJobSpec.concurrencyPolicy": ["Allow", "Forbid", "Replace"],
    "V1PodDisruptionBudgetSpec.unhealthyPodEvictionPolicy": ["AlwaysAllow", "IfHealthyBudget"],
}

DEFAULTS: dict[str, Any] = {"V1ContainerPort.protocol": "TCP", "V1ServicePort.protocol": "TCP"}
"""Defaults of fields that are keys of keyed lists; `defaults` has all other defaults of built-in kinds."""


def _merge_rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for line in _MERGE.strip().splitlines():
        key, apply, strategy, merge_key = line.split()
        row: dict[str, Any] = {}
        if apply.startswith("map:"):
            row["x-kubernetes-list-type"] = "map"
            row["x-kubernetes-list-map-keys"] = apply[4:].split(",")
        elif apply == "set":
            row["x-kubernetes-list-type"] = "set"
        if strategy != "-":
            row["x-kubernetes-patch-strategy"] = strategy
        if merge_key != "-":
            row["x-kubernetes-patch-merge-key"] = merge_key
        rows[key] = row
    return rows


MERGE = _merge_rows()


STRUCTS = words("""
    V1PodTemplateSpec.metadata V1PodTemplateSpec.spec V1JobTemplateSpec.metadata V1JobTemplateSpec.spec
    V1PodTemplate.template V1ReplicaSetSpec.template V1Container.resources
    V1DeploymentSpec.strategy V1DaemonSetSpec.updateStrategy V1StatefulSetSpec.updateStrategy
    V1ServiceStatus.loadBalancer V1IngressStatus.loadBalancer
    V1NodeStatus.daemonEndpoints V1NodeStatus.nodeInfo V1NodeDaemonEndpoints.kubeletEndpoint
    V1PersistentVolumeClaimSpec.resources V1PersistentVolumeClaimTemplate.metadata
    CoreV1Event.involvedObject CoreV1Event.source EventsV1Event.regarding EventsV1Event.deprecatedSource
    V1NetworkPolicySpec.podSelector V1Endpoint.conditions
    """)
"""Fields that Go has as a struct by value: they are always written, at least as `{}`. So are spec and status of every
kind (`zeros`)."""
ZEROS: dict[str, Any] = {
    **{key: {} for key in STRUCTS},
    **dict.fromkeys(
        words("""
        V1PodCondition.lastProbeTime V1PodCondition.lastTransitionTime V1NodeCondition.lastHeartbeatTime
        V1NodeCondition.lastTransitionTime V1DeploymentCondition.lastUpdateTime
        V1DeploymentCondition.lastTransitionTime V1JobCondition.lastProbeTime V1JobCondition.lastTransitionTime
        CoreV1Event.eventTime CoreV1Event.firstTimestamp CoreV1Event.lastTimestamp
        """)
    ),
    **dict.fromkeys(words("CoreV1Event.reportingComponent CoreV1Event.reportingInstance V1GRPCAction.service"), ""),
    "V1ResourceFieldSelector.divisor": "0",
    **dict.fromkeys(
        words("""
        V1PodDisruptionBudgetStatus.currentHealthy V1PodDisruptionBudgetStatus.desiredHealthy
        V1PodDisruptionBudgetStatus.disruptionsAllowed V1PodDisruptionBudgetStatus.expectedPods
        V1StatefulSetStatus.availableReplicas V1StatefulSetStatus.replicas
        """),
        0,
    ),
    "V2HorizontalPodAutoscalerStatus.currentMetrics": None,
}
"""Every optional field that is always written, with its value in a new object."""


def field_extensions(key: str, is_list: bool) -> dict[str, Any]:
    """The facts about `Class.field`, as schema keywords."""
    out: dict[str, Any] = dict(MERGE.get(key, {}))
    if is_list:
        out.setdefault("x-kubernetes-list-type", "atomic")
    elif key in ATOMIC_FIELDS:
        out["x-kubernetes-map-type"] = "atomic"
    if key in ENUMS:
        out["enum"] = list(ENUMS[key])
    if key in DEFAULTS:
        out["default"] = DEFAULTS[key]
    if key in ZEROS:
        out["x-zero"] = ZEROS[key]
    return out
