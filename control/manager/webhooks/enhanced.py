"""Labels that a cluster requires on every pod (spec 04 §12.7, feature gate EnablePodEnhancedValidator).

A ConfigMap holds `enable` and `rules`. `parse` reads its data, `check` applies the rules, and `EnhancedConfig` keeps
the last valid rules. Pure."""

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


class EnhancedRule(Frozen):
    """Labels that pods outside of the listed namespaces must have."""

    name: str = ""
    required_labels: list[str] = msgspec.field(default_factory=list)
    namespace_whitelist: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True)
class EnhancedRules:
    """The validator's configuration."""

    enabled: bool = False
    rules: Sequence[EnhancedRule] = field(default_factory=tuple)


DISABLED = EnhancedRules()


def parse(data: Mapping[str, str] | None) -> EnhancedRules:
    """The rules in the ConfigMap's data; None: there is no ConfigMap. Raises WireError, which names the key."""
    if data is None or data.get(ENABLE_KEY, "").strip().lower() != "true":
        return DISABLED
    text = data.get(RULES_KEY, "").strip()
    rules: list[EnhancedRule] = decode(text, list[EnhancedRule], where=RULES_KEY) if text else []
    return EnhancedRules(True, tuple(rules))


def check(rules: EnhancedRules, labels: Mapping[str, str], namespace: str) -> list[str]:
    """The error of the first violated rule, with the missing labels; empty when all rules hold."""
    if not rules.enabled or labels.get(names.LABEL_SKIP_ENHANCED_VALIDATION) == names.TRUE:
        return []
    for rule in rules.rules:
        if namespace and namespace in rule.namespace_whitelist:
            continue
        missing = [key for key in rule.required_labels if key not in labels]
        if missing:
            return [required("metadata.labels", f"rule {rule.name} requires the labels {', '.join(missing)}")]
    return []


class EnhancedConfig:
    """The last valid rules."""

    def __init__(self) -> None:
        self.rules = DISABLED

    def update(self, data: Mapping[str, str] | None) -> str | None:
        """Use the ConfigMap's data (None: it does not exist). Returns the error if it is invalid and not used."""
        try:
            self.rules = parse(data)
        except WireError as error:
            return str(error)
        return None
