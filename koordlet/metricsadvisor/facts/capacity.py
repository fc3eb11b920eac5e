"""CPU and memory capacity of the node, for graphs of use against capacity. Views only; attached by the daemon."""

from __future__ import annotations

from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.labels import Row
from koordlet.prometheus import Registries


def attach_capacity(registries: Registries, advisor: MetricsAdvisor) -> None:
    """Online CPUs as of the last reading of the topology, and MemTotal as of the last tick."""

    def cpus() -> list[Row]:
        topology = advisor.node_info.topology
        return [] if topology is None else [((), float(len(topology.cpus)))]

    def memory() -> list[Row]:
        usage = advisor.use.snapshot
        return [] if usage is None or usage.node is None else [((), float(usage.node.memory_total))]

    registries.view("node_capacity_cpu_cores", cpus)
    registries.view("node_capacity_memory_bytes", memory)
