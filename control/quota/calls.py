"""How operations on quotas are called: callers may measure them and act around them. Names: spec 06 §7. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

REQUEST_DELTA: Final = "UpdateGroupDeltaRequestNoLock"
USED_DELTA: Final = "UpdateGroupDeltaUsedNoLock"
REFRESH_RUNTIME: Final = "RefreshRuntime"
RESET: Final = "resetQuotaNoLock"
UPDATE_QUOTA: Final = "UpdateQuota"
DELETE_QUOTA: Final = "DeleteQuota"
POD_ADD: Final = "OnPodAdd"
POD_UPDATE: Final = "OnPodUpdate"
POD_DELETE: Final = "OnPodDelete"
RESERVE_POD: Final = "ReservePod"
UNRESERVE_POD: Final = "UnreservePod"


class Call(Protocol):
    """Calls a function for an operation, and returns its result."""

    def __call__(self, operation: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


def plain_call(operation: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Without any addition."""
    return function(*args, **kwargs)
