"""The NodeSLO that is in force: what the object says over koordlet's defaults (spec 02 §3.6), and what of it is not.

A section with a value that can't be acted on (out of range, contradictory, an unknown word) is not taken: the last good
one stays in force, the others count. Before there was a good one the defaults hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordlet.api import slocheck
from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.sloconfig.defaults import effective_cpu_burst, effective_qos, effective_system, effective_threshold
from koordlet.app.logging import get_logger

log = get_logger(__name__)

HELD = {name: section.attribute for name, section in slocheck.SECTIONS.items()} | {
    slocheck.HOST_APPLICATIONS: "host_applications"
}
"""Sections whose last good value stays; the interference strategy's does so in `interference.policy`."""


def effective(spec: NodeSLOSpec | None) -> NodeSLOSpec:
    """Every strategy filled in; None (no NodeSLO yet) gives the defaults.

    Host applications and extensions are taken as they are. Unlike the original, extension keys without a default are
    kept: a plug-in of a newer release must find its settings.
    """
    given = spec or NodeSLOSpec()
    return NodeSLOSpec(
        resource_used_threshold_with_be=effective_threshold(given.resource_used_threshold_with_be),
        resource_qos_strategy=effective_qos(given.resource_qos_strategy),
        cpu_burst_strategy=effective_cpu_burst(given.cpu_burst_strategy),
        system_strategy=effective_system(given.system_strategy),
        extensions=given.extensions,
        host_applications=given.host_applications,
    )


class Accepted:
    """`take` is cheap while the object is the same. `problems`: section -> field -> why it is not in force."""

    def __init__(self) -> None:
        self._seen: NodeSLOSpec | None = None
        self._good = NodeSLOSpec()
        self._effective = effective(None)
        self.problems: slocheck.Problems = {}

    def take(self, spec: NodeSLOSpec | None) -> NodeSLOSpec:
        """The strategies in force now. None (no NodeSLO) forgets what was good."""
        if spec is self._seen:
            return self._effective
        self._seen = spec
        given = spec or NodeSLOSpec()
        found = slocheck.problems(given)
        held: Mapping[str, object] = {
            attribute: getattr(self._good, attribute) for name, attribute in HELD.items() if name in found
        }
        self._good = msgspec.structs.replace(given, **held)
        self._effective, self.problems = effective(self._good), found
        for path, reason in slocheck.lines(found).items():
            log.warning("NodeSLO not taken; the last good section stays", field=path, reason=reason)
        return self._effective
