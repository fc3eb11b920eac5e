"""Plugins that take part in the handling of failed attempts (spec 05 §5.6, the pluggable error filters)."""

from __future__ import annotations

from control.scheduler.framework.plugin import AttemptFailure, Plugin
from control.scheduler.framework.profile import Framework
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class FailureFilters:
    """The filters of one profile, in the order of its plugins. A filter that raises counts as one that returned
    False: a bug in a plugin must not lose a pod."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def take_over(self, failure: AttemptFailure) -> bool:
        """Whether a plugin handles the failure instead of the scheduler. The first that does is the last one called."""
        return any(self._call(plugin, "take_over_failure", failure) for plugin in self._framework.take_over_failure)

    def after(self, failure: AttemptFailure) -> None:
        """The failure was handled. The first plugin that returns True is the last one called."""
        any(self._call(plugin, "after_failure", failure) for plugin in self._framework.after_failure)

    @staticmethod
    def _call(plugin: Plugin, method: str, failure: AttemptFailure) -> bool:
        try:
            return bool(getattr(plugin, method)(failure))
        except Exception as error:
            log.exception("A failure filter failed", plugin=plugin.name, method=method, pod=failure.pod.key, err=error)
            return False
