"""NodePorts, one node at a time."""

from __future__ import annotations

from koordlet.api.core import Node, Pod
from tests.control.scheduler.plain.world import S, Verdict, World


def host_ports(pod: Pod) -> list[tuple[str, str, int]]:
    """(address, protocol, port)"""
    containers = [*pod.spec.containers, *(c for c in pod.spec.init_containers if c.restart_policy == "Always")]
    return [
        (port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port > 0
    ]


def node_ports(pod: Pod, node: Node, world: World) -> Verdict:
    for address, protocol, port in host_ports(pod):
        for other in world.on(node):
            for used_address, used_protocol, used_port in host_ports(other):
                same = address == used_address or "0.0.0.0" in (address, used_address)
                if same and (protocol, port) == (used_protocol, used_port):
                    return S, ("node(s) didn't have free ports for the requested pod ports",)
    return None
