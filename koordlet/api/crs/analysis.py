"""Recommendation (analysis.koordinator.sh/v1alpha1): recommended resource requests of a workload.

Namespaced; the manager's recommender writes the status. `explain` and `checkpoint` are not in Koordinator, which has no
controller for this kind (spec 01 §3.13, 04 §9).
"""

from typing import Annotated

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ApiObject, Condition, LabelSelector


class CrossVersionObjectReference(Struct):
    """A workload of the same namespace."""

    kind: Annotated[str, doc("Kind of the workload.")]
    name: Annotated[str, doc("Name of the workload.")]
    api_version: Annotated[str, doc("API version of the workload.")] = ""


class RecommendationTarget(Struct):
    """The pods that are analysed."""

    type: Annotated[str, doc("How the pods are selected: workload or podSelector.")]
    workload: Annotated[CrossVersionObjectReference | None, doc("The workload.")] = None
    pod_selector: Annotated[LabelSelector | None, doc("Labels of the pods.")] = None


class RecommendationSpec(Struct):
    """`spec` of a Recommendation."""

    target: Annotated[RecommendationTarget, doc("The pods that are analysed.")]


class RecommendedContainerStatus(Struct):
    """The recommendation for one container."""

    container_name: Annotated[str, doc("Name of the container.")] = ""
    resources: Annotated[ResourceList, doc("Recommended requests.")] = {}


class RecommendedPodStatus(Struct):
    """The recommendation for a pod."""

    container_statuses: Annotated[list[RecommendedContainerStatus], doc("By container.")] = []


class HistogramCheckpoint(Struct):
    """The stored form of a decaying histogram (spec 04 §9.2)."""

    reference_timestamp: Annotated[Time | None, doc("Time at which a sample has weight 1; absent: the year 1.")] = None
    bucket_weights: Annotated[
        dict[str, int], doc("Bucket number -> weight in ten-thousandths of the largest weight.")
    ] = {}
    total_weight: Annotated[float, doc("Weight of all samples.")] = 0.0


class ContainerCheckpoint(Struct):
    """The recommender's usage model of one container."""

    container_name: Annotated[str, doc("Name of the container.")] = ""
    samples: Annotated[int, doc("Number of samples.", minimum=0)] = 0
    first_sample_time: Annotated[Time | None, doc("Time of the first sample.")] = None
    last_sample_time: Annotated[Time | None, doc("Time of the last sample.")] = None
    cpu: Annotated[HistogramCheckpoint | None, doc("CPU in cores.")] = None
    memory: Annotated[HistogramCheckpoint | None, doc("Memory in bytes.")] = None
    oom_kills: Annotated[int, doc("Number of OOM kills since the first sample.", minimum=0)] = 0
    oom_memory: Annotated[Quantity | None, doc("Memory that would have avoided the last OOM kill.")] = None
    oom_time: Annotated[Time | None, doc("Time of the last OOM kill.")] = None


class ContainerExplanation(Struct):
    """The explanation of the recommendation for one container."""

    container_name: Annotated[str, doc("Name of the container.")] = ""
    samples: Annotated[int, doc("Number of samples.", minimum=0)] = 0
    confidence_percent: Annotated[
        int, doc("Length of the history in percent of the required one.", minimum=0, maximum=100)
    ] = 0
    lower_bound: Annotated[ResourceList, doc("Requests below this are too small.")] = {}
    upper_bound: Annotated[ResourceList, doc("Requests above this are too large.")] = {}
    message: Annotated[str, doc("The formula with its numbers.")] = ""


class RecommendationStatus(Struct):
    """`status` of a Recommendation."""

    pod_status: Annotated[RecommendedPodStatus | None, doc("The recommendation.")] = None
    update_time: Annotated[Time | None, doc("Time of the last calculation.")] = None
    conditions: Annotated[
        list[Condition],
        doc("LowConfidence, NoObjectsMatched, FetchingHistory, ConfigDeprecated or ConfigUnsupported."),
    ] = []
    explain: Annotated[list[ContainerExplanation], doc("Explanations by container.")] = []
    checkpoint: Annotated[
        list[ContainerCheckpoint], doc("Usage models by container, from which a new leader continues.")
    ] = []


class Recommendation(ApiObject, api_version="analysis.koordinator.sh/v1alpha1"):
    """Recommended resource requests of a workload."""

    spec: Annotated[RecommendationSpec, doc("What to analyse.")]
    status: Annotated[RecommendationStatus, doc("The result.")] = msgspec.field(default_factory=RecommendationStatus)
