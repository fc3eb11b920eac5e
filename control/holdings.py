"""What pods and Reservations hold on one node, so that nothing counts twice (spec 06 §2.3, §3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class NodeHolding(Protocol):
    """What one pod or Reservation holds."""

    @property
    def reservation(self) -> str:
        """uid of the Reservation that the pod uses."""


HoldingT = TypeVar("HoldingT", bound=NodeHolding)


class ReservedHoldings(ABC, Generic[HoldingT]):
    """The holdings on one node, by uid.

    A reservation counts with what its owners do not hold, so nothing counts twice, in any order of arrival.
    """

    def __init__(self) -> None:
        self.given: dict[str, HoldingT] = {}
        """What each pod and reservation got."""
        self.counted: dict[str, HoldingT] = {}
        """The same; reservations with what their owners left."""
        self._owners: dict[str, dict[str, HoldingT]] = {}
        """uid of a reservation -> the holdings of the pods that use it."""

    @abstractmethod
    def _left_by(self, reserved: HoldingT, owners: Iterable[HoldingT]) -> HoldingT:
        """What a reservation still holds beside its owners."""

    @abstractmethod
    def _count(self, holding: HoldingT, sign: int) -> None:
        """Add a holding to the sums (`sign` 1), after it is in `counted`, or subtract it (-1), after it has left."""

    def add(self, uid: str, holding: HoldingT) -> None:
        self.remove(uid)
        self.given[uid] = holding
        if holding.reservation:
            self._owners.setdefault(holding.reservation, {})[uid] = holding
            self._recount(holding.reservation)
        self._recount(uid)

    def remove(self, uid: str) -> None:
        holding = self.given.pop(uid, None)
        if holding is None:
            return
        self._recount(uid)
        if holding.reservation:
            owners = self._owners[holding.reservation]
            del owners[uid]
            if not owners:
                del self._owners[holding.reservation]
            self._recount(holding.reservation)

    @contextmanager
    def without(self, uids: Collection[str]) -> Iterator[None]:
        """Count nothing for these reservations until the block ends."""
        known = {uid: self.given.pop(uid) for uid in uids if uid in self.given}
        for uid in known:
            self._recount(uid)
        try:
            yield
        finally:
            self.given.update(known)
            for uid in known:
                self._recount(uid)

    def _recount(self, uid: str) -> None:
        counted = self.counted.pop(uid, None)
        if counted is not None:
            self._count(counted, -1)
        holding, owners = self.given.get(uid), self._owners.get(uid)
        if holding is not None:
            self.counted[uid] = self._left_by(holding, owners.values()) if owners else holding
            self._count(self.counted[uid], 1)
