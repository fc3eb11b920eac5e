"""Which hook server is asked, and what its silence means (spec 08 §9).

Skeleton of types; see `Dispatcher.dispatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runtimeproxy.hooks import HookResponse


class Policy(StrEnum):
    """What a before-stage hook that fails means for the call; NONE: no server was asked."""

    NONE = "None"
    IGNORE = "Ignore"
    FAIL = "Fail"


class HookRefused(Exception):
    """A before-stage hook failed and its server's policy is Fail: the call must fail with this text, and the runtime
    must not hear of it. str() is `hook server err: <error>`."""

    def __init__(self, error: str) -> None:
        super().__init__(f"hook server err: {error}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`response` when a server answered, `error` when it failed, neither when none is registered for the hook."""

    response: HookResponse | None = None
    policy: Policy = Policy.NONE
    error: str | None = None

    def accepted(self) -> HookResponse | None:
        """The response; None when the call is to go on unchanged. Raises HookRefused when it must not go on."""
        if self.error is not None and self.policy is Policy.FAIL:
            raise HookRefused(self.error)
        return self.response
