"""The NodeSLO in force: the object's spec over koordlet's defaults (spec 02 §3.6), without invalid sections.

A section with an invalid value (out of range, contradictory, unknown keyword) is ignored and the last valid version of
that section stays in force, or the defaults if there was none. The other sections take effect.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordlet.api import slocheck
from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.sloconfig.defaults import effective_cpu_burst, effective_qos, effective_system, effective_threshold
from koordlet.app.logging import get_logger

log = get_logger(__name__)

ATTRIBUTES = {name: section.attribute for name, section in slocheck.SECTIONS.items()} | {
    slocheck.HOST_APPLICATIONS: "host_applications"
}
"""Section -> attribute of NodeSLOSpec, of the sections whose last valid version is kept here. `interference.policy`
keeps the interference strategy's."""


def effective(spec: NodeSLOSpec | None) -> NodeSLOSpec:
    """`spec` with the defaults filled in; None (no NodeSLO yet) gives the defaults.

    Host applications and extensions are copied unchanged. Unlike Koordinator, extension keys without a default are
    kept, so that a plug-in of a newer release has its settings.
    """
    spec = spec or NodeSLOSpec()
    return NodeSLOSpec(
        resource_used_threshold_with_be=effective_threshold(spec.resource_used_threshold_with_be),
        resource_qos_strategy=effective_qos(spec.resource_qos_strategy),
        cpu_burst_strategy=effective_cpu_burst(spec.cpu_burst_strategy),
        system_strategy=effective_system(spec.system_strategy),
        extensions=spec.extensions,
        host_applications=spec.host_applications,
    )


class AcceptedNodeSLO:
    """`update` is cheap while the object is the same. `problems`: section -> field -> why it is not in force."""

    def __init__(self) -> None:
        self._seen: NodeSLOSpec | None = None
        self._valid = NodeSLOSpec()
        self._effective = effective(None)
        self.problems: slocheck.Problems = {}

    def update(self, spec: NodeSLOSpec | None) -> NodeSLOSpec:
        """Take this spec and return the strategies in force. None (no NodeSLO) discards the last valid sections."""
        if spec is self._seen:
            return self._effective
        self._seen = spec
        new = spec or NodeSLOSpec()
        self.problems = slocheck.problems(new)
        kept: Mapping[str, object] = {
            attribute: getattr(self._valid, attribute)
            for name, attribute in ATTRIBUTES.items()
            if name in self.problems
        }
        self._valid = msgspec.structs.replace(new, **kept)
        self._effective = effective(self._valid)
        for path, reason in slocheck.lines(self.problems).items():
            log.warning("Invalid field in NodeSLO, keeping the last valid section", field=path, reason=reason)
        return self._effective
