"""Hooks of ElasticQuota: code of others that takes part in decisions about quotas (spec 06 §5.13).

A factory is a Python entry point (`control.scheduler.config.hookfactories`): a function `(key, arguments, handle)` that
returns a `QuotaHook`. Hooks run in the scheduler's only thread, so they must return quickly. An exception is logged
once for each hook and operation; in `check_pod` it refuses the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from control.quota.info import QuotaInfo
from control.scheduler.config import hookfactories
from control.scheduler.config.args import HookPluginConf
from control.scheduler.framework.handle import Handle
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.logging import get_logger

log = get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

Observe = Callable[[tuple[str, str], float], object]
"""((hook, operation), seconds)."""


class QuotaHook:
    """Base of hooks: does nothing. `old` is None for a new quota or pod, `new` for a deleted one."""

    def is_quota_updated(self, old: QuotaInfo | None, new: QuotaInfo) -> bool:
        """Whether a new version of a quota counts as an update although no figure depends on what changed."""
        return False

    def pre_quota_update(self, old: QuotaInfo | None, new: QuotaInfo | None) -> Any:
        """Before an update is applied. `post_quota_update` receives the result."""

    def post_quota_update(self, old: QuotaInfo | None, new: QuotaInfo | None, state: Any) -> None:
        """After an update was applied."""

    def on_pod_updated(self, quota: str, old: Pod | None, new: Pod | None) -> None:
        """A pod with a node appeared, changed or is gone."""

    def update_quota_status(self, quota: ElasticQuota) -> dict[str, str]:
        """Annotations that the object of the quota should have besides those of the scheduler. Called every second
        for quotas whose status may have changed."""
        return {}

    def check_pod(self, quota: str, pod: Pod) -> str:
        """The reason why the quota must not admit the pod; empty if it may."""
        return ""

    def reset_begins(self) -> None:
        """All figures are about to be computed from the quotas and their pods."""

    def reset_ends(self) -> None:
        """They were computed."""


class QuotaHooks:
    """The hooks of the configuration, each call timed."""

    def __init__(self, configured: Sequence[HookPluginConf], handle: Handle, observe: Observe | None) -> None:
        """Raises what a factory raises: the scheduler does not start without a configured hook."""
        known = hookfactories.known() if configured else {}
        self._hooks: dict[str, QuotaHook] = {}
        for hook in configured:
            self._hooks[hook.key] = known[hook.factory_key].load()(hook.key, hook.factory_args, handle)
        self._observe = observe

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def is_quota_updated(self, old: QuotaInfo | None, new: QuotaInfo) -> bool:
        results = [self._call(key, "is_quota_updated", hook.is_quota_updated, old, new) for key, hook in self._items()]
        return any(results)

    def quota_update(self, old: QuotaInfo | None, new: QuotaInfo | None, apply: Callable[[], R]) -> R:
        """Apply an update between the hooks' calls."""
        states = {
            key: self._call(key, "pre_quota_update", hook.pre_quota_update, old, new) for key, hook in self._items()
        }
        result = apply()
        for key, hook in self._items():
            self._call(key, "post_quota_update", hook.post_quota_update, old, new, states[key])
        return result

    def pod_updated(self, quota: str, old: Pod | None, new: Pod | None) -> None:
        for key, hook in self._items():
            self._call(key, "on_pod_update", hook.on_pod_updated, quota, old, new)

    def annotations(self, quota: ElasticQuota) -> dict[str, str]:
        """What all hooks want the object to state."""
        annotations: dict[str, str] = {}
        for key, hook in self._items():
            annotations |= self._call(key, "update_quota_status", hook.update_quota_status, quota) or {}
        return annotations

    def refusal(self, quota: str, pod: Pod) -> str:
        """The first reason against a pod, as a message for its user."""
        for key, hook in self._items():
            begun = perf_counter()
            try:
                reason = hook.check_pod(quota, pod)
            except Exception as error:  # noqa: BLE001 - code of others: the pod stays pending, the scheduler continues
                reason = f"{type(error).__name__}: {error}"
            finally:
                self._timed(key, "check_pod", begun)
            if reason:
                return f"CheckPod failed for hook plugin {key}, err: {reason}"
        return ""

    def around_reset(self, apply: Callable[[], R]) -> R:
        for key, hook in self._items():
            self._call(key, "reset_begins", hook.reset_begins)
        try:
            return apply()
        finally:
            for key, hook in self._items():
                self._call(key, "reset_ends", hook.reset_ends)

    def _items(self) -> Sequence[tuple[str, QuotaHook]]:
        return tuple(self._hooks.items())

    def _call(self, key: str, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        begun = perf_counter()
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - code of others: its additions are missing, the scheduler continues
            log.once(
                f"quota-hook:{key}:{operation}",
                "A hook of ElasticQuota failed",
                hook=key,
                operation=operation,
                err=f"{type(error).__name__}: {error}",
            )
            return None
        finally:
            self._timed(key, operation, begun)

    def _timed(self, key: str, operation: str, begun: float) -> None:
        if self._observe is not None:
            self._observe((key, operation), perf_counter() - begun)
