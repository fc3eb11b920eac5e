"""All nodes at once: what is used, what is offered to batch pods, what is wasted, and where services are delayed."""

from __future__ import annotations

from scripts.grafana.frame import SECONDS_PER_SECOND, Dashboard, Panel, Query, Row
from scripts.grafana.parts import NODE, TOP, N, quantile, rate, sum_by

_CPU_USED, _CPU_CAPACITY = f"sum(koordlet_node_used_cpu_cores{N})", f"sum(koordlet_node_capacity_cpu_cores{N})"
_MEMORY_USED = f"sum(koordlet_node_used_memory_bytes{N})"
_MEMORY_CAPACITY = f"sum(koordlet_node_capacity_memory_bytes{N})"
_BATCH = 'node=~"$node",qos="BE"'
_CPU_OF_BATCH = f"(sum(koordlet_qos_cpu_usage_cores{{{_BATCH}}}) or vector(0))"
_HURT = 'koordlet_interference_containers{node=~"$node",cause="neighbour",state="interfered"}'
_BY_NODE = sum_by("node", f"koordlet_start_time{N}")
_FULL = [(None, "red"), (0.3, "orange"), (0.5, "green")]
"""Steps of utilisation: a fleet is there to be used."""


def _offer(what: str, resource: str, scale: str) -> str:
    """The sum of a family over the chosen nodes, in cores or bytes."""
    return f'sum({what}{{node=~"$node",resource="kubernetes.io/batch-{resource}"}}){scale}'


def _by_node(what: str) -> str:
    """Thousandths of a core of batch CPU, per node."""
    return sum_by("node", f'{what}{{node=~"$node",resource="kubernetes.io/batch-cpu"}}')


def _overcommitted(title: str, resource: str, unit: str, scale: str, used: str) -> Panel:
    return Panel(
        title,
        "Offered to batch pods, requested by batch pods, and used by best-effort pods.",
        [
            Query(_offer("koordlet_node_resource_allocatable", resource, scale), "offered"),
            Query(_offer("koordlet_container_resource_requests", resource, scale), "requested"),
            Query(used, "used"),
        ],
        unit=unit,
    )


def _by_class(title: str, description: str, used: str, of_class: str, capacity: str, unit: str) -> Panel:
    return Panel(
        title,
        description,
        [
            Query(sum_by("qos", f"{of_class}{N}"), "{{qos}}"),
            Query(used, "all, with the system"),
            Query(capacity, "capacity"),
        ],
        unit=unit, stack=True, lines=["all, with the system", "capacity"],
    )  # fmt: skip


FLEET_DASHBOARD = Dashboard(
    uid="koordlet-fleet",
    title="koordlet / Fleet",
    description="All nodes at once: used, offered and wasted capacity, and where services are delayed.",
    variables=[NODE],
    rows=[
        Row(
            "Utilisation",
            [
                Panel(
                    "Nodes",
                    "Nodes with a koordlet.",
                    [Query(f"count(koordlet_start_time{N})")],
                    kind="stat",
                    width=4,
                    height=5,
                ),
                Panel(
                    "CPU in use",
                    "Busy CPU time over all CPUs.",
                    [Query(f"{_CPU_USED} / {_CPU_CAPACITY}")],
                    kind="stat",
                    unit="percentunit",
                    width=5,
                    height=5,
                    max=1,
                    steps=_FULL,
                ),
                Panel(
                    "CPU in use without batch",
                    "The same without best-effort pods: the utilisation without co-location.",
                    [Query(f"({_CPU_USED} - {_CPU_OF_BATCH}) / {_CPU_CAPACITY}")],
                    kind="stat",
                    unit="percentunit",
                    width=5,
                    height=5,
                    max=1,
                    steps=_FULL,
                ),
                Panel(
                    "Memory in use",
                    "Memory in use without page cache, over all memory.",
                    [Query(f"{_MEMORY_USED} / {_MEMORY_CAPACITY}")],
                    kind="stat",
                    unit="percentunit",
                    width=5,
                    height=5,
                    max=1,
                    steps=_FULL,
                ),
                Panel(
                    "Delayed containers",
                    "Containers that other containers delay.",
                    [Query(f"sum({_HURT}) or vector(0)")],
                    kind="stat",
                    width=5,
                    height=5,
                    steps=[(None, "green"), (1, "red")],
                ),
                _by_class(
                    "CPU by class",
                    "Cores used by the pods of each QoS class, by everything, and all cores.",
                    _CPU_USED,
                    "koordlet_qos_cpu_usage_cores",
                    _CPU_CAPACITY,
                    "short",
                ),
                _by_class(
                    "Memory by class",
                    "Memory used by the pods of each QoS class, by everything, and all memory; without page cache.",
                    _MEMORY_USED,
                    "koordlet_qos_memory_usage_bytes",
                    _MEMORY_CAPACITY,
                    "bytes",
                ),
            ],
        ),
        Row(
            "Overcommitted and wasted",
            [
                _overcommitted("Batch CPU", "cpu", "short", " / 1000", _CPU_OF_BATCH),
                _overcommitted(
                    "Batch memory",
                    "memory",
                    "bytes",
                    "",
                    f"(sum(koordlet_qos_memory_usage_bytes{{{_BATCH}}}) or vector(0))",
                ),
                Panel(
                    "Wasted CPU",
                    f"Cores that no container uses, per node; the {TOP} nodes with most.",
                    [
                        Query(
                            f"topk({TOP}, koordlet_node_capacity_cpu_cores{N} - koordlet_node_used_cpu_cores{N})",
                            "{{node}}",
                        )
                    ],
                    kind="bargauge",
                ),
                Panel(
                    "Offered CPU that no batch pod requests",
                    f"Cores of batch CPU, per node; the {TOP} nodes with most.",
                    [
                        Query(
                            f"topk({TOP}, ({_by_node('koordlet_node_resource_allocatable')} - "
                            f"({_by_node('koordlet_container_resource_requests')} or 0 * {_BY_NODE})) / 1000)",
                            "{{node}}",
                        )
                    ],
                    kind="bargauge",
                ),
            ],
        ),
        Row(
            "Where services are delayed",
            [
                Panel(
                    "Delayed containers by resource",
                    "Containers that other containers delay, by resource.",
                    [Query(sum_by("resource", _HURT), "{{resource}}")],
                    stack=True,
                ),
                Panel(
                    "Time in interference",
                    "Duration of interference by other containers, summed over containers.",
                    [
                        Query(
                            sum_by(
                                "resource",
                                rate("koordlet_interference_seconds_total", '{node=~"$node",cause="neighbour"}'),
                            ),
                            "{{resource}}",
                        )
                    ],
                    unit=SECONDS_PER_SECOND,
                    stack=True,
                ),
                Panel(
                    "Nodes with delayed containers",
                    f"Containers that other containers delay, per node; the {TOP} nodes with most.",
                    [Query(f"topk({TOP}, {sum_by('node', _HURT)})", "{{node}}")],
                    kind="bargauge",
                ),
                Panel(
                    "Wait for a CPU by class",
                    "99th percentile of the time from runnable to running.",
                    [Query(quantile(0.99, "koordlet_sched_latency_seconds", N, "qos"), "{{qos}}")],
                    unit="s",
                ),
                Panel(
                    "Evictions",
                    "Evicted pods in 5 minutes, by reason.",
                    [Query(f"round(sum by (reason) (increase(koordlet_pod_eviction{N}[5m])))", "{{reason}}")],
                    stack=True,
                ),
                Panel(
                    "CPU of best-effort pods under suppression",
                    "Cores that CPU suppress leaves to best-effort pods.",
                    [Query(f"sum by (type) (koordlet_be_suppress_cpu_cores{N})", "{{type}}")],
                ),
            ],
        ),
    ],
)
