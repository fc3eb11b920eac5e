"""Items that wait in one FIFO per share, where the shares take turns.

A share with many items delays an item of another share by one of them. Shares are, for example, namespaces. They occupy
memory only while they have items.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


def namespace_of(key: str) -> str:
    """Of `ObjectMeta.key`; cluster-scoped objects are one share."""
    return key.rpartition("/")[0]


class Turns(Generic[T]):
    """See the module docstring. `share_of`: the share of an item."""

    def __init__(self, share_of: Callable[[T], Hashable]) -> None:
        self._share_of = share_of
        self._shares: OrderedDict[Hashable, deque[T]] = OrderedDict()  # the first one's turn is next
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, item: T) -> None:
        """Add the last item of its share."""
        share = self._share_of(item)
        if share not in self._shares:
            self._shares[share] = deque()
        self._shares[share].append(item)
        self._length += 1

    def pop(self) -> T:
        """Remove the first item of the share whose turn it is. Raises KeyError if there are no items."""
        share, items = self._shares.popitem(last=False)
        item = items.popleft()
        self._length -= 1
        if items:
            self._shares[share] = items
        return item
