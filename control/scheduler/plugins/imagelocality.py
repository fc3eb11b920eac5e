"""ImageLocality: prefers nodes that have the pod's images, the larger the better (spec 05 §4).

An image's size is scaled by the share of nodes that have it, so that a single node does not attract all pods. The nodes
with an image are a bit set with one bit per row. Nodes without images (`nodeimages`) score 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, Plugin, Reads
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus
from control.scheduler.plugins import results
from control.scheduler.state.columns import IntArray, RowArray, Rows
from control.scheduler.state.nodeimages import ContainerImage, images_of
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Pod

_MIN_BYTES: Final = 23 << 20
"""Images up to this size in total give score 0."""
_MAX_BYTES_PER_CONTAINER: Final = 1000 << 20
"""Images from this size on give the highest score."""


@dataclass(slots=True)
class _Image:
    size: int
    rows: int = 0
    """Bit i is set if row i has the image."""


class ImageLocality(Plugin):
    name = "ImageLocality"
    reads = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._memo = results.memo_key(self.name, handle)
        self._images: dict[str, _Image] = {}
        self._seen: dict[int, list[ContainerImage]] = {}
        self._node_at = -1
        self._version = 0

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        self._sync()
        if not self._images or not any(name in self._images for name in _names(pod.shape)):
            return SKIP
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        self._sync()
        chosen: IntArray = self._scores(pod.shape)[rows]
        return chosen

    def _scores(self, shape: Shape) -> IntArray:
        """[row]; cached until a node is added or removed or changes its images."""
        table = self.table
        key = (self._version, table.nodes_alive, table.size)
        known: tuple[tuple[int, int, int], IntArray] | None = shape.memo.get(self._memo)
        if known is not None and known[0] == key:
            return known[1]
        names = _names(shape)
        total = np.zeros(table.size, np.int64)
        for name in names:
            image = self._images.get(name)
            if image is not None:
                share = image.rows.bit_count() / table.nodes_alive
                total += int(image.size * share) * _bits(image.rows, table.size)
        most = _MAX_BYTES_PER_CONTAINER * max(len(names), 1)
        scores: IntArray = (np.clip(total, _MIN_BYTES, most) - _MIN_BYTES) * MAX_SCORE // (most - _MIN_BYTES)
        shape.memo[self._memo] = (key, scores)
        return scores

    def _sync(self) -> None:
        """Update the images of the nodes that changed."""
        table = self.table
        end = table.node_log.end
        if end == self._node_at:
            return
        changed = table.node_log.since(self._node_at) if self._node_at >= 0 else None
        self._node_at = end
        replaced: list[tuple[int, list[ContainerImage]]] = []
        for row in range(table.size) if changed is None else set(changed):
            now, before = images_of(table.nodes[row]), self._seen.get(row, [])
            if now != before:
                self._remove(row, before)
                replaced.append((row, now))
        for row, now in replaced:  # after all removals, so that an image that no node kept gets its new size
            self._add(row, now)
        self._version += bool(replaced)

    def _remove(self, row: int, before: list[ContainerImage]) -> None:
        bit = 1 << row
        for name in {name for image_entry in before for name in image_entry.names}:
            image = self._images[name]
            image.rows &= ~bit
            if not image.rows:
                del self._images[name]

    def _add(self, row: int, now: list[ContainerImage]) -> None:
        bit = 1 << row
        for image_entry in now:
            for name in image_entry.names:
                self._images.setdefault(name, _Image(image_entry.size_bytes)).rows |= bit
        if now:
            self._seen[row] = now
        else:
            self._seen.pop(row, None)


def _names(shape: Shape) -> tuple[str, ...]:
    cached: tuple[str, ...] | None = shape.memo.get("ImageLocality.names")
    if cached is None:
        cached = shape.memo["ImageLocality.names"] = image_names(shape.pod)
    return cached


def image_names(pod: Pod) -> tuple[str, ...]:
    """One name per container, including init containers; `:latest` is added if the tag is missing."""
    return tuple(
        image if ":" in image.rpartition("/")[2] else f"{image}:latest"
        for image in (container.image for container in (*pod.spec.init_containers, *pod.spec.containers))
    )


def _bits(rows: int, size: int) -> IntArray:
    """[size]: 1 for rows whose bit is set."""
    packed = np.frombuffer(rows.to_bytes((max(size, rows.bit_length()) + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little")[:size].astype(np.int64)
