"""The configuration file of a component: read, overridden by flags, written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from control.component.errors import ConfigurationError
from control.component.options import ComponentOptions
from control.component.settings import LeaderElection
from koordlet.api.encoding.times import Duration


def read_file(path: str) -> str:
    """The text of the file; empty without a path. Raises ConfigurationError."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"cannot read {path}: {error}"]) from error


def apply_lease_flags(lease: LeaderElection, options: ComponentOptions) -> None:
    """Override the leader election of the file with the flags. Raises ConfigurationError."""
    if options.leader_elect is not None:
        lease.leader_elect = options.leader_elect
    for name in ("lease_duration", "renew_deadline", "retry_period"):
        value = getattr(options, f"leader_elect_{name}")
        if value:
            try:
                setattr(lease, name, Duration(value))
            except ValueError as error:
                raise ConfigurationError([f"--leader-elect-{name.replace('_', '-')}: {error}"]) from error
    for name in ("resource_name", "resource_namespace"):
        setattr(lease, name, getattr(options, f"leader_elect_{name}") or getattr(lease, name))


def write_file(document: Mapping[str, Any], path: str) -> None:
    """The effective configuration as YAML (`--write-config-to`). Raises ConfigurationError."""
    try:
        Path(path).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError([f"cannot write {path}: {error.strerror}"]) from error
