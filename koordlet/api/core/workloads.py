"""Workloads, disruption budgets and evictions, trimmed to the fields that are read here.

All workload kinds share one trimmed spec: number of pods, pod selector, pod template.
"""

import msgspec

from koordlet.api.core.pod import PodTemplateSpec
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import IntOrString, Time
from koordlet.api.meta import DeleteOptions, LabelSelector, ObjectMeta


class WorkloadSpec(Struct):
    """`spec` of a ReplicaSet, Deployment, StatefulSet or DaemonSet; `replicas` absent means 1."""

    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: LabelSelector | None = None
    template: PodTemplateSpec = msgspec.field(default_factory=PodTemplateSpec)


class WorkloadStatus(Struct):
    """`status` of those kinds."""

    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    updated_replicas: int = 0
    observed_generation: int = 0


class ReplicaSet(Struct):
    """apps/v1 ReplicaSet."""

    kind: str = msgspec.field(default_factory=lambda: "ReplicaSet")
    api_version: str = msgspec.field(default_factory=lambda: "apps/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class Deployment(Struct):
    """apps/v1 Deployment."""

    kind: str = msgspec.field(default_factory=lambda: "Deployment")
    api_version: str = msgspec.field(default_factory=lambda: "apps/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class StatefulSet(Struct):
    """apps/v1 StatefulSet."""

    kind: str = msgspec.field(default_factory=lambda: "StatefulSet")
    api_version: str = msgspec.field(default_factory=lambda: "apps/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class DaemonSet(Struct):
    """apps/v1 DaemonSet."""

    kind: str = msgspec.field(default_factory=lambda: "DaemonSet")
    api_version: str = msgspec.field(default_factory=lambda: "apps/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)


class ReplicationControllerSpec(Struct):
    """`spec` of a ReplicationController: its selector is a plain map of labels."""

    replicas: int | None = None
    selector: dict[str, str] = msgspec.field(default_factory=dict)


class ReplicationController(Struct):
    """core/v1 ReplicationController."""

    kind: str = msgspec.field(default_factory=lambda: "ReplicationController")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ReplicationControllerSpec = msgspec.field(default_factory=ReplicationControllerSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class JobSpec(Struct):
    """`spec` of a job."""

    parallelism: int | None = None
    completions: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = msgspec.field(default_factory=PodTemplateSpec)


class Job(Struct):
    """batch/v1 Job."""

    kind: str = msgspec.field(default_factory=lambda: "Job")
    api_version: str = msgspec.field(default_factory=lambda: "batch/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: JobSpec = msgspec.field(default_factory=JobSpec)


class PodDisruptionBudgetSpec(Struct):
    """`spec` of a budget."""

    min_available: IntOrString | None = None
    selector: LabelSelector | None = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Struct):
    """`status` of a budget."""

    observed_generation: int = 0
    disrupted_pods: dict[str, Time] = msgspec.field(default_factory=dict)
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(Struct):
    """policy/v1 PodDisruptionBudget."""

    kind: str = msgspec.field(default_factory=lambda: "PodDisruptionBudget")
    api_version: str = msgspec.field(default_factory=lambda: "policy/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)


class Eviction(Struct):
    """policy/v1 Eviction: the body of POST …/pods/{name}/eviction."""

    kind: str = msgspec.field(default_factory=lambda: "Eviction")
    api_version: str = msgspec.field(default_factory=lambda: "policy/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    delete_options: DeleteOptions | None = None
