"""NodeMetric (slo.koordinator.sh/v1alpha1): usage of one node, measured by koordlet.

Cluster scoped, named like the node. The manager writes `spec`, koordlet writes `status` (spec 01 §3.3).
"""

from typing import Annotated, Any

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.crs.device import DeviceInfo
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import Int32, doc, written
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.meta import ApiObject

USAGE_WITH_HOT_PAGE_CACHE = "usageWithHotPageCache"
USAGE_WITHOUT_PAGE_CACHE = "usageWithoutPageCache"
USAGE_WITH_PAGE_CACHE = "usageWithPageCache"

AVG, P50, P90, P95, P99 = "avg", "p50", "p90", "p95", "p99"
AGGREGATIONS = (AVG, P50, P90, P95, P99)
"""Keys of `AggregatedUsage.usage`."""


CONTAINERS_KEY = "containers"
"""Key in `status.podsMetric[].extensions`, an addition to Koordinator: container name -> `{cpu, memory}` in the format
of `podUsage`, for pods with more than one container. `containers_of` reads it."""


class ResourceMap(Struct):
    """An amount of resources, devices included. CPU in milli (DecimalSI), memory in bytes (BinarySI)."""

    resources: Annotated[ResourceList, doc("cpu, memory and other amounts.")] = {}
    devices: Annotated[list[DeviceInfo], doc("Device usage; do not read their health.")] = []


class NodeAggregatePolicy(Struct):
    """Windows of aggregated usage."""

    durations: Annotated[list[Duration], doc("One AggregatedUsage is reported for each.")] = []


class CollectPolicy(Struct):
    """How koordlet aggregates and reports usage."""

    aggregate_duration_seconds: Annotated[
        int | None, doc("Window of the average usage in seconds; koordlet uses at least 60.")
    ] = None
    report_interval_seconds: Annotated[
        int | None, doc("Seconds between reports; koordlet uses at least 30 by default.")
    ] = None
    node_aggregate_policy: Annotated[NodeAggregatePolicy | None, doc("Windows of aggregated usage.")] = None
    node_memory_collect_policy: Annotated[
        str,
        doc(
            "What counts as used memory.",
            enum=(USAGE_WITH_HOT_PAGE_CACHE, USAGE_WITHOUT_PAGE_CACHE, USAGE_WITH_PAGE_CACHE),
        ),
    ] = ""


class PredictPolicy(Struct):
    """How koordlet predicts; not in Koordinator, whose proposal defines these fields (spec 02 §11.4)."""

    resource_diff_threshold_percent: Annotated[
        int | None, doc("Report early when a predicted amount changes by more than this; default 5.", minimum=0)
    ] = None
    cold_start_period_seconds: Annotated[
        int | None, doc("Younger pods are predicted to use their requests; default: koordlet's flag.", minimum=0)
    ] = None


class NodeMetricSpec(Struct):
    """`spec` of a NodeMetric."""

    metric_collect_policy: Annotated[CollectPolicy | None, doc("How koordlet aggregates and reports usage.")] = None
    predict_policy: Annotated[PredictPolicy | None, doc("How koordlet predicts.")] = None


class AggregatedUsage(Struct):
    """Average and percentiles over one window."""

    usage: Annotated[
        dict[str, ResourceMap],
        doc("avg, p50, p90, p95, p99; empty if the samples cover less than half of the window."),
    ] = {}
    duration: Annotated[Duration, doc("The window.")] = written(Duration.of)


class NUMAUsage(Struct):
    """Usage of one NUMA node."""

    numa_node_id: Annotated[Int32, doc("Number of the NUMA node.")] = msgspec.field(name="numaNodeID")
    node_usage: Annotated[ResourceMap, doc("Total usage.")] = written(ResourceMap)
    system_usage: Annotated[ResourceMap, doc("Usage of neither pods nor host applications.")] = written(ResourceMap)


class NodeMetricInfo(Struct):
    """Usage of the node."""

    node_usage: Annotated[ResourceMap, doc("Average usage of the node.")] = written(ResourceMap)
    aggregated_node_usages: Annotated[list[AggregatedUsage], doc("Usage of the node by window.")] = []
    system_usage: Annotated[ResourceMap, doc("Average usage of neither pods nor host applications.")] = written(
        ResourceMap
    )
    aggregated_system_usages: Annotated[list[AggregatedUsage], doc("System usage by window.")] = []
    numa_usages: Annotated[list[NUMAUsage], doc("By NUMA node, sorted by number.")] = []


class PodMetricInfo(Struct):
    """Usage of one pod."""

    name: Annotated[str, doc("Name of the pod.")] = ""
    namespace: Annotated[str, doc("Namespace of the pod.")] = ""
    pod_usage: Annotated[ResourceMap, doc("Average usage of the pod.")] = written(ResourceMap)
    priority: Annotated[str, doc("Priority class of the pod.")] = ""
    qos: Annotated[str, doc("QoS class of the pod.")] = ""
    extensions: Annotated[dict[str, Any] | None, doc("Third-party data.", preserve=True)] = None


def containers_of(pod: PodMetricInfo) -> dict[str, tuple[float, float]]:
    """Container name -> (cores, bytes).

    Containers with missing, malformed or negative amounts are left out: any client can write extensions.
    """
    containers = (pod.extensions or {}).get(CONTAINERS_KEY)
    usage: dict[str, tuple[float, float]] = {}
    for name, value in containers.items() if isinstance(containers, dict) else ():
        amounts = (value.get("cpu"), value.get("memory")) if isinstance(value, dict) else ()
        try:
            cores, memory = (float(Quantity(text)) for text in amounts if isinstance(text, str))
        except ValueError:  # a malformed quantity, or fewer than two values
            continue
        if cores >= 0 and memory >= 0:
            usage[name] = (cores, memory)
    return usage


class HostApplicationMetricInfo(Struct):
    """Usage of one application outside Kubernetes."""

    name: Annotated[str, doc("Name of the application.")] = ""
    usage: Annotated[ResourceMap, doc("Average usage of the application.")] = written(ResourceMap)
    priority: Annotated[str, doc("Priority class of the application.")] = ""
    qos: Annotated[str, doc("QoS class of the application.")] = ""


class ReclaimableMetric(Struct):
    """A predicted amount."""

    resource: Annotated[ResourceMap, doc("The amount; empty if the prediction failed.")] = written(ResourceMap)


class NodeMetricStatus(Struct):
    """`status` of a NodeMetric."""

    update_time: Annotated[Time | None, doc("Time of the report; a stale report is ignored.")] = None
    node_metric: Annotated[NodeMetricInfo | None, doc("Usage of the node.")] = None
    pods_metric: Annotated[list[PodMetricInfo], doc("By pod, sorted by namespace and name.")] = []
    host_application_metric: Annotated[
        list[HostApplicationMetricInfo], doc("By host application, sorted by name.")
    ] = []
    prod_reclaimable_metric: Annotated[
        ReclaimableMetric | None, doc("Predicted reclaimable resources of Prod pods.")
    ] = None
    prod_peak_metric: Annotated[
        ReclaimableMetric | None, doc("Predicted peak of Prod pods and system, safety margin included.")
    ] = None
    extensions: Annotated[
        dict[str, Any] | None, doc("Summaries of the node, by subject; not in Koordinator.", preserve=True)
    ] = None


class NodeMetric(ApiObject, api_version="slo.koordinator.sh/v1alpha1"):
    """Usage of a node; the object is named like the node."""

    spec: Annotated[NodeMetricSpec, doc("How to aggregate and report; set by the manager.")] = msgspec.field(
        default_factory=NodeMetricSpec
    )
    status: Annotated[NodeMetricStatus, doc("The measured usage; set by koordlet.")] = msgspec.field(
        default_factory=NodeMetricStatus
    )
