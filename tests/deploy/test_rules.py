"""The Prometheus rules, checked by promtool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.runtime

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "deploy/prometheus").glob("*.rules.yaml"))
each = pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name.partition(".")[0])


def _units(rules: Path) -> Path:
    return Path(__file__).with_name(rules.name.replace(".rules.", ".rules.test."))


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each
def test_rules_are_well_formed(rules: Path) -> None:
    promtool("check", "rules", str(rules))


@each
def test_rules_pass_their_unit_tests(rules: Path, tmp_path: Path) -> None:
    shutil.copy(rules, tmp_path / "rules.yaml")
    shutil.copy(_units(rules), tmp_path / "tests.yaml")
    promtool("test", "rules", str(tmp_path / "tests.yaml"))


@each
def test_every_rule_has_a_test_and_every_alert_is_documented(rules: Path) -> None:
    tested, page = _units(rules).read_text(), (ROOT / "docs/grafana.md").read_text()
    all_rules = [rule for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    assert {name for rule in all_rules if (name := rule.get("record") or rule["alert"]) not in tested} == set()
    for alert in (rule for rule in all_rules if "alert" in rule):
        anchor = alert["alert"].lower()
        assert alert["annotations"]["runbook"] == f"docs/grafana.md#{anchor}"
        assert page.count(f'| <a id="{anchor}"></a>{alert["alert"]} |') == 1
