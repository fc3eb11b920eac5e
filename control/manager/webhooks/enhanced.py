"""Labels that a cluster wants on every pod (spec 04 §12.7, gate EnablePodEnhancedValidator).

A ConfigMap holds `enable` and `rules`. `parse` reads it, `check` applies it; who keeps it current (and keeps the last
good one) is `EnhancedConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from control.manager.webhooks.errors import required
from koordlet.api import names
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.wire import WireError, decode

ENABLE_KEY = "enable"
RULES_KEY = "rules"


class Rule(Frozen):
    """Labels that pods must have, outside the listed namespaces."""

    name: str = ""
    required_labels: list[str] = msgspec.field(default_factory=list)
    namespace_whitelist: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True)
class Rules:
    """The validator's configuration."""

    enabled: bool = False
    rules: Sequence[Rule] = field(default_factory=tuple)


DISABLED = Rules()


def parse(data: Mapping[str, str] | None) -> Rules:
    """The ConfigMap's data; None when there is none. Raises WireError naming the key."""
    if data is None or data.get(ENABLE_KEY, "").strip().lower() != "true":
        return DISABLED
    text = data.get(RULES_KEY, "").strip()
    rules: list[Rule] = decode(text, list[Rule], where=RULES_KEY) if text else []
    return Rules(True, tuple(rules))


def check(rules: Rules, labels: Mapping[str, str], namespace: str) -> list[str]:
    """The labels that the first failing rule misses on a pod; none when all rules hold."""
    if not rules.enabled or labels.get(names.LABEL_SKIP_ENHANCED_VALIDATION) == names.TRUE:
        return []
    for rule in rules.rules:
        if namespace in [each for each in rule.namespace_whitelist if each]:
            continue
        missing = [key for key in rule.required_labels if key not in labels]
        if missing:
            return [required("metadata.labels", f"rule {rule.name} requires the labels {', '.join(missing)}")]
    return []


class EnhancedConfig:
    """The last good rules. `update` takes what was just read."""

    def __init__(self) -> None:
        self.rules = DISABLED

    def update(self, data: Mapping[str, str] | None) -> str | None:
        """Take the ConfigMap's data (None: it does not exist); what is wrong with it, if it was not taken."""
        try:
            self.rules = parse(data)
        except WireError as error:
            return str(error)
        return None
