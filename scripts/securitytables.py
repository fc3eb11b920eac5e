"""Writes the tables of docs/security.md from the data that the programs use.

Use: `make security-tables`; a test holds the page current.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from control.ctl.manifests import koordlet
from control.ctl.manifests.optionalrights import RIGHTS
from control.descheduler.process import manifests as descheduler
from control.manager import manifests as manager
from control.manager.trust.keys import TENANT, TRUSTED
from control.manifestfiles import Purpose
from control.scheduler.process import manifests as scheduler
from koordlet.system.capabilities import CAPABILITIES
from scripts.rightsusers import users_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "security.md"
_TABLE = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _trusted_keys() -> str:
    rows = [
        (f"`{key.key}`", key.kind, key.effect, ", ".join(key.setters), key.tenant.text)
        for key in sorted(TRUSTED, key=lambda each: each.setters != TRUSTED[0].setters)
    ]
    return table(("key", "kind", "effect", "trusted components", "other users may set"), rows)


def _tenant_keys() -> str:
    return table(("key", "kind", "reason"), [(f"`{key.key}`", key.kind, key.reason) for key in TENANT])


def _capabilities() -> str:
    rows = [
        (f"`{each.name}`", each.reason, " ".join(f"`{module}`" for module in each.modules), each.without)
        for each in CAPABILITIES
    ]
    return table(("capability", "for", "used by", "without it"), rows)


def _rights() -> str:
    rows = [
        (
            component,
            _of_rules(purpose.rules),
            purpose.text if scope == CLUSTER else f"{purpose.text} ({scope})",
            " ".join(f"`{module}`" for module in users_of(component, purpose.text)),
        )
        for component, scope, purposes in ROLES
        for purpose in purposes
    ]
    return table(("component", "rights", "used for", "used by"), rows)


def _other_rights() -> str:
    rows = [
        (f"{role['kind']} `{role['metadata']['name']}`", f"`{path}`", _of_rules(role["rules"]), GRANTED[name])
        for path, role in roles_of_deploy()
        if (name := role["metadata"]["name"]) in GRANTED
    ]
    return table(("role", "file", "rights", "for"), rows)


def roles_of_deploy() -> list[tuple[str, dict[str, Any]]]:
    """Path and object of every role in deploy/."""
    return [
        (str(path.relative_to(ROOT)), each)
        for path in sorted((ROOT / "deploy").rglob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if each and each.get("kind") in ("ClusterRole", "Role")
    ]


def _of_rules(rules: Iterable[dict[str, Any]]) -> str:
    return "; ".join(
        f"{', '.join(rule['verbs'])} `{'`, `'.join(rule.get('resources') or rule['nonResourceURLs'])}`"
        + (f" named {', '.join(f'`{name}`' for name in rule['resourceNames'])}" if rule.get("resourceNames") else "")
        for rule in rules
    )


CLUSTER, NAMESPACE = "the cluster", "in its namespace"
ROLES: tuple[tuple[str, str, Iterable[Purpose]], ...] = (
    ("koordlet", CLUSTER, koordlet.purposes()),
    ("koord-manager", CLUSTER, manager.PURPOSES),
    ("koord-manager", NAMESPACE, manager.NAMESPACE_PURPOSES),
    ("koord-scheduler", CLUSTER, scheduler.PURPOSES),
    ("koord-scheduler", NAMESPACE, scheduler.NAMESPACE_PURPOSES),
    ("koord-descheduler", CLUSTER, descheduler.PURPOSES),
    ("koord-descheduler", NAMESPACE, descheduler.NAMESPACE_PURPOSES),
    *(
        (account, f"`{folder}-rights/{each.name}.yaml`", each.purposes)
        for folder, account, rights in RIGHTS
        for each in rights
    ),
)
GRANTED: dict[str, str] = {
    "koordinator-view": "people and `kubectl koord`: nodes, pods, reports, and the components' pages",
    "koordinator-portforward": "`kubectl koord` where the API server does not reach the ports of pods; powerful",
    "koordinator-view-pages": "the pages that a token of the account `koordinator-view` may read",
    "koordinator-metrics-reader": "Prometheus",
    "koordlet-older-kubelets": "koordlet, where kubelets are older than 1.33; amounts to commands in all containers",
}
"""Roles that no component has by default -> for whom."""
TABLES: dict[str, Callable[[], str]] = {
    "trusted keys": _trusted_keys,
    "tenant keys": _tenant_keys,
    "rights": _rights,
    "other rights": _other_rights,
    "capabilities": _capabilities,
}


def page(text: str) -> str:
    """The page with current tables. Raises KeyError for a table without data."""
    return _TABLE.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
