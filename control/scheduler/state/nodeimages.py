"""Nodes with their container images, for ImageLocality (spec 05 §4).

The common `Node` type drops images: a node lists up to 50, and most nodes list the same ones. Here equal entries share
one object. Use: `Informer(client, ImageNode, resource=Node, trim=ImagePool().trim)`.
"""

from __future__ import annotations

import msgspec

from koordlet.api.core import Node
from koordlet.api.core.node import NodeStatus
from koordlet.api.encoding.base import Frozen


class ContainerImage(Frozen):
    """An image by all its names, and its size in bytes."""

    names: list[str] = msgspec.field(default_factory=list)
    size_bytes: int = 0


class ImageNodeStatus(NodeStatus):
    """`status` of a node, with images."""

    images: list[ContainerImage] = msgspec.field(default_factory=list)


class ImageNode(Node):
    """core/v1 Node, with images."""

    status: ImageNodeStatus = msgspec.field(default_factory=ImageNodeStatus)


class ImagePool:
    """Lets equal images of nodes share one object. Images that no node has any more stay until the process ends."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[str, ...]], ContainerImage] = {}

    def __len__(self) -> int:
        return len(self._known)

    def trim(self, node: Node) -> Node:
        """The node itself, changed in place."""
        if not isinstance(node, ImageNode):
            return node
        known = self._known
        node.status.images = [
            known.setdefault((image.size_bytes, tuple(image.names)), image) for image in node.status.images
        ]
        return node


def images_of(node: Node | None) -> list[ContainerImage]:
    """The images of a node; none where they were not decoded."""
    return node.status.images if isinstance(node, ImageNode) else []
