"""Cache and bandwidth by class: the worked example of spec 03 §3.7 as a table."""

from __future__ import annotations

import pytest

from koordlet.qosmanager.strategies.resctrl import ResctrlClasses
from koordlet.resourceexecutor import Setting
from koordlet.system.resctrl import AMD, INTEL, ResctrlFacts
from tests.koordlet.qosmanager.conftest import make_pod, make_view

ENABLED = {f"{name}Class": {"resctrlQOS": {"enable": True}} for name in ("lsr", "ls", "be")}
DOMAINS = (0, 1)


def facts(vendor=INTEL, **given):
    return ResctrlFacts(vendor, **{"caches": DOMAINS, "bandwidths": DOMAINS, "cbm": 0x7FF, **given})


def decided(qos, *pods, found=None):
    view = make_view(slo={"resourceQOSStrategy": qos}, pods=pods)
    return ResctrlClasses(lambda: found).decide(view)


def values(decision):
    return {(u.setting.resource.removeprefix("resctrl."), u.setting.device): u.value for u in decision.updates}


def everywhere(l3, mb):
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
def test_schemata(vendor, qos, expected) -> None:
    found = values(decided(qos, found=facts(vendor)))
    wanted = {("mount", ""): "on"}
    for group, (l3, mb) in expected.items():
        wanted |= {("group", group): "present"} | {(line, group): text for line, text in everywhere(l3, mb).items()}
    assert found == wanted


def test_threads_go_to_the_group_of_the_class() -> None:
    pods = [
        make_pod(name, qos=qos) for name, qos in [("a", "LSE"), ("b", "LSR"), ("c", "LS"), ("d", "BE"), ("e", "SYSTEM")]
    ]
    pods += [
        make_pod("f", qos="BE", annotations={"node.koordinator.sh/resctrl": "{}"}),
        make_pod("g", qos="BE", phase="Succeeded"),
        make_pod("h", kube="BestEffort"),
        make_pod("i", kube="Burstable"),
    ]
    found = {u.setting.device: u.value.split() for u in decided(ENABLED, *pods, found=facts()).updates
             if u.setting.resource == "resctrl.tasks"}  # fmt: skip
    names = {group: {one.rpartition("/pod")[2].removeprefix("uid-") for one in dirs} for group, dirs in found.items()}
    assert names == {"LSR": {"a", "b"}, "LS": {"c", "i"}, "BE": {"d", "h"}}


def test_a_class_that_is_off_takes_nobody() -> None:
    decision = decided({"beClass": {"resctrlQOS": {"enable": True}}}, make_pod("a", qos="LS"), found=facts())
    assert Setting("resctrl.tasks", device="LS") not in {update.setting for update in decision.updates}


def test_with_every_class_off_all_is_given_back() -> None:
    assert decided({}, make_pod("a", qos="BE"), found=facts()).updates == ()


def test_it_is_mounted_first() -> None:
    assert values(decided(ENABLED, found=None)) == {("mount", ""): "on"}


def test_bandwidth_without_cache_allocation() -> None:
    found = values(decided(ENABLED, found=facts(caches=(), cbm=0)))
    assert ("L3", "BE") not in found
    assert found["MB", "BE"] == "0=100;1=100"


@pytest.mark.parametrize(
    "resctrl",
    [
        pytest.param({"catRangeStartPercent": 60}, id="it ends where it starts or before"),
        pytest.param({"catRangeEndPercent": 101}, id="beyond the end"),
    ],
)
def test_a_range_that_makes_no_sense_is_said_and_costs_nothing_else(resctrl) -> None:
    decision = decided({"beClass": {"resctrlQOS": {"enable": True, **resctrl}}}, found=facts())
    found = values(decision)
    assert ("L3", "BE") not in found
    assert found["MB", "BE"] == "0=100;1=100"
    assert found["L3", "LS"] == "0=7ff;1=7ff"
    assert decision.note.startswith("BE: L3 percent")


def test_sparse_ids_and_the_least_width() -> None:
    config = {"enable": True, "catRangeStartPercent": 20, "catRangeEndPercent": 25}
    found = values(decided({"beClass": {"resctrlQOS": config}}, found=facts(caches=(0, 8), min_bits=2)))
    assert found["L3", "BE"] == "0=18;8=18", "three to three of eleven ways is none at all"
