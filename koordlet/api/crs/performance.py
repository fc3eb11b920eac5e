"""How well each container performs, in NodeMetric: what koord-manager compares among the replicas of a workload.

`status.podsMetric[].extensions.performance`: container name -> figure -> value. A higher value is worse. Any client
that may write NodeMetrics can write extensions, so reading them is bounded and leaves out what is malformed.
"""

from __future__ import annotations

import math
from typing import Final

from koordlet.api.crs.nodemetric import PodMetricInfo

EXTENSION_KEY: Final = "performance"
CPI: Final = "cpi"
"""Cycles per instruction."""
WAITS: Final = ("cpu", "memory", "io", "network")
"""Fractions of the time in which the container wanted to run that it waited for a resource, for any reason; for the CPU
that includes CPUs that the hypervisor took away."""
MAX_CONTAINERS: Final = 16
MAX_FIGURES: Final = 16
MAX_NAME_CHARS: Final = 63

Figures = dict[str, float]


def figures_of(pod: PodMetricInfo) -> dict[str, Figures]:
    """Container -> figures; empty without the extension."""
    containers = (pod.extensions or {}).get(EXTENSION_KEY)
    figures: dict[str, Figures] = {}
    if not isinstance(containers, dict):
        return figures
    for name, values in list(containers.items())[:MAX_CONTAINERS]:
        if isinstance(values, dict) and len(name) <= MAX_NAME_CHARS:
            usable = {key: float(value) for key, value in list(values.items())[:MAX_FIGURES] if _is_figure(key, value)}
            if usable:
                figures[name] = usable
    return figures


def _is_figure(key: str, value: object) -> bool:
    if len(key) > MAX_NAME_CHARS or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0 <= float(value) < math.inf
    except OverflowError:  # an integer of thousands of digits
        return False
