"""Cache and bandwidth by class: the worked example of spec 03 §3.7 as a table."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.strategies.resctrl import ResctrlClasses
from koordlet.resourceexecutor import Setting
from koordlet.system.resctrl import AMD, INTEL, ResctrlFacts
from tests.koordlet.qosmanager.conftest import make_pod, make_view

ENABLED = {f"{name}Class": {"resctrlQOS": {"enable": True}} for name in ("lsr", "ls", "be")}
DOMAINS = (0, 1)


def facts(vendor: str = INTEL, **fields: Any) -> ResctrlFacts:
    return ResctrlFacts(vendor, **{"caches": DOMAINS, "bandwidths": DOMAINS, "cbm": 0x7FF, **fields})


def decided(qos: dict[str, Any], *pods: PodView, mounted: ResctrlFacts | None = None) -> QoSDecision:
    view = make_view(slo={"resourceQOSStrategy": qos}, pods=pods)
    return ResctrlClasses(lambda: mounted).decide(view)  # type: ignore[return-value]


def values(decision: QoSDecision) -> dict[tuple[str, str], str]:
    return {(u.setting.resource.removeprefix("resctrl."), u.setting.device): u.value for u in decision.updates}  # type: ignore[misc]


def everywhere(l3: str, mb: int) -> dict[str, str]:
    return {"L3": ";".join(f"{d}={l3}" for d in DOMAINS), "MB": ";".join(f"{d}={mb}" for d in DOMAINS)}


@pytest.mark.parametrize(
    ("vendor", "qos", "expected"),
    [
        pytest.param(INTEL, ENABLED, {"LSR": ("7ff", 100), "LS": ("7ff", 100), "BE": ("f", 100)}, id="defaults"),
        pytest.param(AMD, ENABLED, {"LSR": ("7ff", 2048), "LS": ("7ff", 2048), "BE": ("f", 2048)}, id="AMD"),
        pytest.param(
            INTEL,
            {"lsClass": {"resctrlQOS": {"enable": True, "mbaPercent": 85}}},
            {"LSR": ("7ff", 100), "LS": ("7ff", 90), "BE": ("7ff", 100)},
            id="classes that are off have everything",
        ),
        pytest.param(
            AMD,
            {"beClass": {"resctrlQOS": {"enable": True, "catRangeStartPercent": 10, "catRangeEndPercent": 50,
                                        "mbaPercent": 65}}},
            {"LSR": ("7ff", 2048), "LS": ("7ff", 2048), "BE": ("3c", 104)},
            id="a range in the middle",
        ),
        pytest.param(
            "ARM",
            {"beClass": {"resctrlQOS": {"enable": True, "mbaPercent": 33}}},
            {"LSR": ("7ff", 100), "LS": ("7ff", 100), "BE": ("f", 40)},
            id="others count as Intel",
        ),
    ],
)  # fmt: skip
def test_schemata_of_a_class(vendor: str, qos: dict[str, Any], expected: dict[str, tuple[str, int]]) -> None:
    settings = values(decided(qos, mounted=facts(vendor)))
    expected_settings = {("mount", ""): "on"}
    for group, (l3, mb) in expected.items():
        expected_settings |= {("group", group): "present"} | {
            (line, group): text for line, text in everywhere(l3, mb).items()
        }
    assert settings == expected_settings


def test_threads_are_assigned_to_the_group_of_their_class() -> None:
    pods = [
        make_pod(name, qos=qos) for name, qos in [("a", "LSE"), ("b", "LSR"), ("c", "LS"), ("d", "BE"), ("e", "SYSTEM")]
    ]
    pods += [
        make_pod("f", qos="BE", annotations={"node.koordinator.sh/resctrl": "{}"}),
        make_pod("g", qos="BE", phase="Succeeded"),
        make_pod("h", kube="BestEffort"),
        make_pod("i", kube="Burstable"),
    ]
    directories = {u.setting.device: u.value.split() for u in decided(ENABLED, *pods, mounted=facts()).updates  # type: ignore[union-attr]
             if u.setting.resource == "resctrl.tasks"}  # fmt: skip
    names = {
        group: {directory.rpartition("/pod")[2].removeprefix("uid-") for directory in dirs}
        for group, dirs in directories.items()
    }
    assert names == {"LSR": {"a", "b"}, "LS": {"c", "i"}, "BE": {"d", "h"}}


def test_a_disabled_class_gets_no_threads() -> None:
    decision = decided({"beClass": {"resctrlQOS": {"enable": True}}}, make_pod("a", qos="LS"), mounted=facts())
    assert Setting("resctrl.tasks", device="LS") not in {update.setting for update in decision.updates}


def test_with_all_classes_disabled_everything_is_restored() -> None:
    assert decided({}, make_pod("a", qos="BE"), mounted=facts()).updates == ()


def test_resctrl_is_mounted_first() -> None:
    assert values(decided(ENABLED, mounted=None)) == {("mount", ""): "on"}


def test_bandwidth_without_cache_allocation() -> None:
    settings = values(decided(ENABLED, mounted=facts(caches=(), cbm=0)))
    assert ("L3", "BE") not in settings
    assert settings["MB", "BE"] == "0=100;1=100"


@pytest.mark.parametrize(
    "resctrl",
    [
        pytest.param({"catRangeStartPercent": 60}, id="it ends where it starts or before"),
        pytest.param({"catRangeEndPercent": 101}, id="beyond the end"),
    ],
)
def test_an_invalid_range_is_noted_and_affects_nothing_else(resctrl: dict[str, int]) -> None:
    decision = decided({"beClass": {"resctrlQOS": {"enable": True, **resctrl}}}, mounted=facts())
    settings = values(decision)
    assert ("L3", "BE") not in settings
    assert settings["MB", "BE"] == "0=100;1=100"
    assert settings["L3", "LS"] == "0=7ff;1=7ff"
    assert decision.note.startswith("BE: L3 percent")


def test_sparse_cache_ids_and_the_minimum_width() -> None:
    config = {"enable": True, "catRangeStartPercent": 20, "catRangeEndPercent": 25}
    settings = values(decided({"beClass": {"resctrlQOS": config}}, mounted=facts(caches=(0, 8), min_bits=2)))
    assert settings["L3", "BE"] == "0=18;8=18", "three to three of eleven ways is none at all"
