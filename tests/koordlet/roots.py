"""The host's layout below a temporary directory."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from koordlet.system.roots import Roots


def roots_under(base: Path) -> Roots:
    """Every directory of the host's layout, below `base`."""
    host = Roots.host()
    names = [field.name for field in fields(host) if field.name != "host_mode"]
    return replace(host, **{name: base / getattr(host, name).relative_to("/") for name in names})
