"""The NodeSLO that is in force: what the object says over koordlet's defaults (spec 02 §3.6). Pure."""

from __future__ import annotations

from koordlet.api.slo import NodeSLOSpec
from koordlet.api.sloconfig.defaults import effective_cpu_burst, effective_qos, effective_system, effective_threshold


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
