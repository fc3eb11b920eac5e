"""docs/configuration.md agrees with the programs, and names every field, gate and flag."""

from __future__ import annotations

import re

import pytest

from control.scheduler.process.process import _SUPPORTED_GATES
from koordlet.api import gates
from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.encoding.schemas import root_schema
from koordlet.api.sloconfig import documents, interference, profile
from koordlet.app.flags import usage
from scripts import configreference

PAGE = configreference.PAGE.read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text from a heading to the next of its level or above."""
    start = PAGE.index(f"\n{heading}\n")
    end = re.search(rf"^#{{2,{heading.index(' ')}}} ", PAGE[start + len(heading) + 2 :], re.MULTILINE)
    return PAGE[start:] if end is None else PAGE[start : start + len(heading) + 2 + end.start()]


@pytest.mark.parametrize("key", (*documents.KEYS, interference.CONFIG_KEY))
def test_every_key_of_the_configmap_has_a_table(key: str) -> None:
    assert section(f"### `{key}`").count("\n| `") >= 2


def test_the_profiles_are_named() -> None:
    text = section(f"### `{profile.PROFILE_KEY}`")
    assert all(name in text for name in profile.PROFILES)


def test_every_field_of_a_nodeslo_is_listed() -> None:
    strategies = {
        "resourceUsedThresholdWithBE": documents.THRESHOLD_KEY,
        "resourceQOSStrategy": documents.QOS_KEY,
        "cpuBurstStrategy": documents.CPU_BURST_KEY,
        "systemStrategy": documents.SYSTEM_KEY,
        "hostApplications": documents.HOST_APPLICATION_KEY,
    }
    schema = root_schema(NodeSLOSpec)["properties"]
    assert strategies.keys() == schema.keys() - {"extensions", "apiVersion", "kind", "metadata"}
    for name, key in strategies.items():
        listed = set(re.findall(r"^\| `([^`]+)`", section(f"### `{key}`"), re.MULTILINE))
        expected = {
            re.sub(rf"^({'|'.join(configreference.CLASSES)})\.", "CLASS.", field.path)
            for field in configreference.fields(schema[name].get("items", schema[name]))
        }
        assert listed == expected


def test_gates_without_effect_are_those_that_the_scheduler_warns_about() -> None:
    text = section("### koord-scheduler")
    idle = set(re.findall(r"^\| `(\w+)` .* No effect\. \|$", text, re.MULTILINE))
    assert idle == gates.SCHEDULER.keys() - _SUPPORTED_GATES


@pytest.mark.parametrize(("program", "options"), configreference.PROGRAMS.items())
def test_every_flag_is_listed(program: str, options: type) -> None:
    flags = PAGE[PAGE.index("\n## Flags\n") :]
    table = flags[flags.index(f"\n### {program}\n") :]
    table = table[: table.index("\n#", 1)]
    offered = re.findall(r"^  (--\S+).*\n {8}(.*)$", usage(options, prog=program), re.MULTILINE)
    current = {name for name, text in offered if "[deprecated" not in text} - {"--help", "--version"}
    assert set(re.findall(r"^\| `(--[^`]+)`", table, re.MULTILINE)) == current


def test_tables_have_a_text_for_every_effect() -> None:
    assert not re.findall(r"^\| `.*\|\s*\|$", PAGE, re.MULTILINE)
