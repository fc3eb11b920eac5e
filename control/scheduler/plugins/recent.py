"""What plugins compile for shapes when it is large: kept in the shape, and forgotten for shapes not used for long."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from control.scheduler.state.pods import Shape

LIMIT: Final = 256


class RecentShapes:
    """`memo`: the key in `Shape.memo` that is dropped once `limit` other shapes were used."""

    def __init__(self, memo: str, limit: int = LIMIT) -> None:
        self._memo, self._limit = memo, limit
        self._shapes: OrderedDict[int, Shape] = OrderedDict()

    def used(self, shape: Shape) -> None:
        shapes = self._shapes
        shapes[shape.id] = shape
        shapes.move_to_end(shape.id)
        if len(shapes) > self._limit:
            shapes.popitem(last=False)[1].memo.pop(self._memo, None)
