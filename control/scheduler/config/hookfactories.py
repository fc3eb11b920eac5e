"""Factories of ElasticQuota's hooks (spec 06 §5.13): Python entry points of installed distributions.

The administrator of the scheduler installs them, and names them in `hookPlugins`. Nothing is loaded that is not named.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

GROUP: Final = "koord_scheduler.elastic_quota_hooks"


def known() -> dict[str, EntryPoint]:
    """By factory key."""
    return {point.name: point for point in entry_points(group=GROUP)}
