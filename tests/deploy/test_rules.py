"""The Prometheus rules, judged by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.runtime

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/koordlet.rules.yaml"
TESTS = Path(__file__).with_name("koordlet.rules.test.yaml")


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_well_formed() -> None:
    promtool("check", "rules", str(RULES))


def test_rules_do_what_their_tests_say(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path / "rules.yaml")
    shutil.copy(TESTS, tmp_path / "tests.yaml")
    promtool("test", "rules", str(tmp_path / "tests.yaml"))


def test_every_rule_has_a_test_and_every_alert_a_line_in_the_page() -> None:
    tested, page = TESTS.read_text(), (ROOT / "docs/grafana.md").read_text()
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {name for rule in rules if (name := rule.get("record") or rule["alert"]) not in tested} == set()
    assert {rule["alert"] for rule in rules if "alert" in rule and f"| {rule['alert']} |" not in page} == set()
