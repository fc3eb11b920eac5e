"""How much CPU and memory the node has, for graphs of use against capacity. Views only; attached by the daemon."""

from __future__ import annotations

from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.prometheus import Registries


def attach_capacity(registries: Registries, advisor: MetricsAdvisor) -> None:
    """Online CPUs as last looked up, and MemTotal as of the last tick."""

    def cpus() -> list[tuple[tuple[str, ...], float]]:
        return [] if advisor.topology is None else [((), float(len(advisor.topology.cpus)))]

    def memory() -> list[tuple[tuple[str, ...], float]]:
        picture = advisor.picture
        return [] if picture is None or picture.node is None else [((), float(picture.node.memory_total))]

    registries.view("node_capacity_cpu_cores", cpus)
    registries.view("node_capacity_memory_bytes", memory)
