"""ImageLocality, one node at a time."""

from __future__ import annotations

from koordlet.api.core import Node, Pod
from tests.control.scheduler.plain.world import World

MIB = 1024 * 1024


def image_score(pod: Pod, node: Node, world: World) -> int:
    containers = [*pod.spec.init_containers, *pod.spec.containers]
    total = 0
    here = world.images.get(node.metadata.name, {})
    for container in containers:
        name = container.image
        if ":" not in name.rpartition("/")[2]:
            name += ":latest"
        if name in here:
            having = sum(name in world.images.get(n.metadata.name, {}) for n in world.nodes)
            total += int(here[name] * (having / len(world.nodes)))
    low, high = 23 * MIB, 1000 * MIB * len(containers)
    total = max(low, min(total, high))
    return 100 * (total - low) // (high - low)
