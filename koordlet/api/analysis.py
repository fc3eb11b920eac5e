"""Recommendation (analysis.koordinator.sh/v1alpha1): resources that a workload should ask for.

Namespaced. No controller writes the kind yet. Source: spec 01 §3.13.
"""

from typing import Annotated

import msgspec

from koordlet.api.base import Struct
from koordlet.api.core.pod import ResourceList
from koordlet.api.fields import doc, written
from koordlet.api.meta import Condition, LabelSelector, ObjectMeta
from koordlet.api.wire import Time


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


class RecommendationStatus(Struct):
    """`status` of a Recommendation."""

    pod_status: Annotated[RecommendedPodStatus | None, doc("The recommendation.")] = None
    update_time: Annotated[Time | None, doc("When it was last computed.")] = None
    conditions: Annotated[
        list[Condition],
        doc("LowConfidence, NoObjectsMatched, FetchingHistory, ConfigDeprecated or ConfigUnsupported."),
    ] = msgspec.field(default_factory=list)


class Recommendation(Struct):
    """Resources that a workload should ask for."""

    kind: str = written(lambda: "Recommendation")
    api_version: str = written(lambda: "analysis.koordinator.sh/v1alpha1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: Annotated[RecommendationSpec, doc("What to analyse.")]
    status: Annotated[RecommendationStatus, doc("The result.")] = msgspec.field(default_factory=RecommendationStatus)
