"""Liveness and readiness of a process, as named checks.

A check is a function that raises or returns a reason if it fails ("pods: not synced yet"). Readiness uses all checks,
liveness only those marked live, because a process that only waits for the API server must not be restarted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from koordlet.app.logging import describe

Check = Callable[[], "Awaitable[str | None] | str | None"]
_CHECK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `reason` is None if it passed."""

    name: str
    reason: str | None

    @property
    def ok(self) -> bool:
        return self.reason is None


class HealthChecks:
    """The checks of a process."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}

    def check(self, name: str, fn: Check, *, live: bool = False) -> None:
        """Add a check; `live` checks are part of /healthz, too. Raises ValueError if the name is taken."""
        if name == "ping" or name in self._checks:
            raise ValueError(f'health check "{name}" already exists')
        self._checks[name] = (fn, live)

    async def live(self, exclude: Collection[str]) -> list[CheckResult]:
        """Run the live checks. The first is always `ping`, which shows that the event loop runs."""
        return await self._run(lambda live: live, exclude)

    async def ready(self, exclude: Collection[str] = ()) -> list[CheckResult]:
        """Run all checks."""
        return await self._run(lambda live: True, exclude)

    async def _run(self, selected: Callable[[bool], bool], exclude: Collection[str]) -> list[CheckResult]:
        checks = [(name, fn) for name, (fn, live) in self._checks.items() if selected(live) and name not in exclude]
        reasons = await asyncio.gather(*(_reason(fn) for _, fn in checks))
        ping = [] if "ping" in exclude else [CheckResult("ping", None)]
        return ping + [CheckResult(name, reason) for (name, _), reason in zip(checks, reasons, strict=True)]


async def _reason(fn: Check) -> str | None:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            result = fn()
            return await result if inspect.isawaitable(result) else result
    except TimeoutError:
        return f"no answer within {_CHECK_TIMEOUT_S:g}s"
    except Exception as error:  # noqa: BLE001 - a check that raises has failed; the report has its cause
        return describe(error)
