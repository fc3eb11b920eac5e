"""Large data that plugins compile for shapes: stored in the shape, and dropped for the least recently used shapes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from control.scheduler.state.pods import Shape

MAX_SHAPES: Final = 256


class RecentShapes:
    """`memo`: the key in `Shape.memo` that is dropped after `limit` other shapes were used."""

    def __init__(self, memo: str) -> None:
        self._memo = memo
        self._shapes: OrderedDict[int, Shape] = OrderedDict()

    def used(self, shape: Shape) -> None:
        shapes = self._shapes
        shapes[shape.id] = shape
        shapes.move_to_end(shape.id)
        if len(shapes) > MAX_SHAPES:
            shapes.popitem(last=False)[1].memo.pop(self._memo, None)
