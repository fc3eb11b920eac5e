"""Recommendation (analysis.koordinator.sh/v1alpha1): resources that a workload should ask for.

Namespaced; the manager's recommender writes the status. `explain` and `checkpoint` are not in Koordinator, whose
releases have no controller for the kind. Source: spec 01 §3.13, 04 §9.
"""

from typing import Annotated

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import Condition, LabelSelector, ObjectMeta


class CrossVersionObjectReference(Struct):
    """A workload of the same namespace."""

    kind: Annotated[str, doc("Kind of the workload.")]
    name: Annotated[str, doc("Name of the workload.")]
    api_version: Annotated[str, doc("API version of the workload.")] = ""


class RecommendationTarget(Struct):
    """Whose pods are looked at."""

    type: Annotated[str, doc("What names the pods.", enum=("workload", "podSelector"))]
    workload: Annotated[CrossVersionObjectReference | None, doc("The workload.")] = None
    pod_selector: Annotated[LabelSelector | None, doc("Labels of the pods.")] = None


class RecommendationSpec(Struct):
    """`spec` of a Recommendation."""

    target: Annotated[RecommendationTarget, doc("Whose pods are looked at.")]


class RecommendedContainerStatus(Struct):
    """The recommendation for one container."""

    container_name: Annotated[str, doc("Name of the container.")] = ""
    resources: Annotated[ResourceList, doc("Recommended requests.")] = msgspec.field(default_factory=dict)


class RecommendedPodStatus(Struct):
    """The recommendation for a pod."""

    container_statuses: Annotated[list[RecommendedContainerStatus], doc("By container.")] = msgspec.field(
        default_factory=list
    )


class HistogramCheckpoint(Struct):
    """One decaying histogram as it is kept (spec 04 §9.2)."""

    reference_timestamp: Annotated[Time | None, doc("When a sample would weigh 1; absent: the year 1.")] = None
    bucket_weights: Annotated[
        dict[str, int], doc("Number of a bucket -> its weight in ten-thousandths of the greatest.")
    ] = msgspec.field(default_factory=dict)
    total_weight: Annotated[float, doc("Weight of all samples.")] = 0.0


class ContainerCheckpoint(Struct):
    """What the recommender has learned of one container."""

    container_name: Annotated[str, doc("Name of the container.")] = ""
    samples: Annotated[int, doc("Samples taken since the first.", minimum=0)] = 0
    first_sample_time: Annotated[Time | None, doc("When the first sample was measured.")] = None
    last_sample_time: Annotated[Time | None, doc("When the latest sample was measured.")] = None
    cpu: Annotated[HistogramCheckpoint | None, doc("CPU in cores.")] = None
    memory: Annotated[HistogramCheckpoint | None, doc("Memory in bytes.")] = None
    oom_kills: Annotated[int, doc("Kills for lack of memory since the first sample.", minimum=0)] = 0
    oom_memory: Annotated[Quantity | None, doc("Memory that would have saved the one killed last.")] = None
    oom_time: Annotated[Time | None, doc("When a container was killed last for lack of memory.")] = None


class ContainerExplanation(Struct):
    """How the recommendation for one container came about."""

    container_name: Annotated[str, doc("Name of the container.")] = ""
    samples: Annotated[int, doc("Samples taken since the first.", minimum=0)] = 0
    confidence_percent: Annotated[
        int, doc("History there is, in per cent of what is asked for.", minimum=0, maximum=100)
    ] = 0
    lower_bound: Annotated[ResourceList, doc("Requests below this are too small.")] = msgspec.field(
        default_factory=dict
    )
    upper_bound: Annotated[ResourceList, doc("Requests above this are too large.")] = msgspec.field(
        default_factory=dict
    )
    message: Annotated[str, doc("The formula with its numbers.")] = ""


class RecommendationStatus(Struct):
    """`status` of a Recommendation."""

    pod_status: Annotated[RecommendedPodStatus | None, doc("The recommendation.")] = None
    update_time: Annotated[Time | None, doc("When it was last computed.")] = None
    conditions: Annotated[
        list[Condition],
        doc("LowConfidence, NoObjectsMatched, FetchingHistory, ConfigDeprecated or ConfigUnsupported."),
    ] = msgspec.field(default_factory=list)
    explain: Annotated[list[ContainerExplanation], doc("How it came about, by container.")] = msgspec.field(
        default_factory=list
    )
    checkpoint: Annotated[
        list[ContainerCheckpoint], doc("What was learned, by container; a new leader goes on from it.")
    ] = msgspec.field(default_factory=list)


class Recommendation(Struct):
    """Resources that a workload should ask for."""

    kind: str = written(lambda: "Recommendation")
    api_version: str = written(lambda: "analysis.koordinator.sh/v1alpha1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: Annotated[RecommendationSpec, doc("What to analyse.")]
    status: Annotated[RecommendationStatus, doc("The result.")] = msgspec.field(default_factory=RecommendationStatus)
