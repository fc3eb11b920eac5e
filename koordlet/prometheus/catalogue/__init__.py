"""All metric families that koordlet exports (spec 02 §10): tables of data, by topic.

A family that is not in these tables cannot be exported. A test compares docs/metrics.md with them.
"""

from __future__ import annotations

from koordlet.prometheus.catalogue import decisions, reports, stalls, usage

FAMILIES = (*usage.FAMILIES, *stalls.FAMILIES, *decisions.FAMILIES, *reports.FAMILIES)
CATALOGUE = {family.name: family for family in FAMILIES}
"""Name without prefix -> family."""
