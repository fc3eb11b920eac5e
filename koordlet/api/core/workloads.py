"""Workloads, disruption budgets and evictions, trimmed to the fields that are read here.

All workload kinds share one trimmed spec: number of pods, pod selector, pod template.
"""

import msgspec

from koordlet.api.core.pod import PodTemplateSpec
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import IntOrString, Time
from koordlet.api.meta import ApiObject, DeleteOptions, LabelSelector


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


class ReplicaSet(ApiObject, api_version="apps/v1"):
    """apps/v1 ReplicaSet."""

    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class Deployment(ApiObject, api_version="apps/v1"):
    """apps/v1 Deployment."""

    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class StatefulSet(ApiObject, api_version="apps/v1"):
    """apps/v1 StatefulSet."""

    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class DaemonSet(ApiObject, api_version="apps/v1"):
    """apps/v1 DaemonSet."""

    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)


class ReplicationControllerSpec(Struct):
    """`spec` of a ReplicationController: its selector is a plain map of labels."""

    replicas: int | None = None
    selector: dict[str, str] = {}


class ReplicationController(ApiObject, api_version="v1"):
    """core/v1 ReplicationController."""

    spec: ReplicationControllerSpec = msgspec.field(default_factory=ReplicationControllerSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class JobSpec(Struct):
    """`spec` of a job."""

    suspend: bool = False
    parallelism: int | None = None
    completions: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = msgspec.field(default_factory=PodTemplateSpec)


class JobCondition(Struct):
    """A condition of a job."""

    type: str = ""
    status: str = ""
    message: str = ""


class JobStatus(Struct):
    """`status` of a job."""

    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    start_time: Time | None = None
    conditions: list[JobCondition] = []


class Job(ApiObject, api_version="batch/v1"):
    """batch/v1 Job."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: JobStatus = msgspec.field(default_factory=JobStatus)


class PodDisruptionBudgetSpec(Struct):
    """`spec` of a budget."""

    min_available: IntOrString | None = None
    selector: LabelSelector | None = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Struct):
    """`status` of a budget."""

    observed_generation: int = 0
    disrupted_pods: dict[str, Time] = {}
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(ApiObject, api_version="policy/v1"):
    """policy/v1 PodDisruptionBudget."""

    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)


class Eviction(ApiObject, api_version="policy/v1"):
    """policy/v1 Eviction: the body of POST …/pods/{name}/eviction."""

    delete_options: DeleteOptions | None = None
