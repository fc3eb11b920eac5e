"""Arguments of the plugin InterferenceAware of the descheduler. Not in Koordinator."""

from __future__ import annotations

from collections.abc import Iterator

from control.component.errors import invalid
from control.descheduler.config.selection import NamespaceRule, namespace_errors
from control.descheduler.framework.plugin import PluginArgs


class InterferenceMovesArgs(PluginArgs):
    """When a pod moves because of interference, and how many."""

    paused: bool = False
    dry_run: bool = False
    """Log and record Events, but move nothing."""
    evictable_namespaces: NamespaceRule | None = None
    report_expiration_seconds: int = 180
    """Older NodeMetrics are ignored."""
    persist_seconds: int = 600
    """How long a service must be delayed without a pause, according to every report."""
    min_confidence: float = 0.7
    min_culprit_share: float = 0.5
    """The main culprit moves if it causes at least this share of the delay; else the service moves."""
    max_moves_per_pass: int = 1
    cooldown_seconds: int = 3600
    """How long a node, and the workload of a moved pod, are left alone after a move."""
    move_victims: bool = True
    """Whether the service may move if its culprit may not."""
    node_fit: bool = True
    """Whether the pod must fit another node without interference."""

    def check(self, path: str) -> list[str]:
        return list(self._errors(path))

    def _errors(self, path: str) -> Iterator[str]:
        for name, value in (
            ("reportExpirationSeconds", self.report_expiration_seconds),
            ("persistSeconds", self.persist_seconds),
            ("maxMovesPerPass", self.max_moves_per_pass),
        ):
            if value <= 0:
                yield invalid(f"{path}.{name}", value, "must be greater than 0")
        if self.cooldown_seconds < 0:
            yield invalid(f"{path}.cooldownSeconds", self.cooldown_seconds, "must not be negative")
        for name, share in (("minConfidence", self.min_confidence), ("minCulpritShare", self.min_culprit_share)):
            if not 0 <= share <= 1:
                yield invalid(f"{path}.{name}", share, "must be between 0 and 1")
        yield from namespace_errors(self.evictable_namespaces, f"{path}.evictableNamespaces")
