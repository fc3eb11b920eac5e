"""Validation of a NodeSLO per field."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.encoding.wire import convert
from koordlet.api.slocheck import lines, problems

LS = {"lsClass": {"memoryQOS": {"enable": True, "wmarkRatio": 95}}}


def problems_of(spec: dict[str, Any]) -> dict[str, str]:
    return lines(problems(convert(spec, NodeSLOSpec)))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 0}},
        {"resourceUsedThresholdWithBE": {"cpuSuppressPolicy": "cfsQuota", "cpuEvictPolicy": "evictByAllocatable"}},
        {"resourceQOSStrategy": LS},
        {"cpuBurstStrategy": {"policy": "auto", "cfsQuotaBurstPeriodSeconds": -1}},
        {"systemStrategy": {"minFreeKbytesFactor": 100, "schedFeatures": {"X": True}}},
        {"hostApplications": [{"name": "nginx", "qos": "LS", "cgroupPath": {"base": "Kubepods"}}]},
        {"extensions": {"Object": {"interferenceStrategy": {"minDurationSeconds": 9}, "other": 1}}},
        {"aNewerSection": {"x": 1}, "cpuBurstStrategy": {"aNewerField": 1}},
    ],
)
def test_valid_specs(spec: dict[str, Any]) -> None:
    assert problems_of(spec) == {}


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 101}},
         "resourceUsedThresholdWithBE.cpuSuppressThresholdPercent", "101 is greater than 100"),
        ({"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": -1}},
         "resourceUsedThresholdWithBE.cpuSuppressThresholdPercent", "less than 0"),
        ({"resourceUsedThresholdWithBE": {"cpuSuppressPolicy": "shares"}},
         "resourceUsedThresholdWithBE.cpuSuppressPolicy", "'shares' is not one of cpuset, cfsQuota"),
        ({"resourceUsedThresholdWithBE": {"cpuEvictPolicy": "x"}},
         "resourceUsedThresholdWithBE.cpuEvictPolicy", "not one of"),
        ({"resourceUsedThresholdWithBE": {"memoryEvictLowerPercent": 70}},
         "resourceUsedThresholdWithBE.memoryEvictThresholdPercent", "70 is not greater than memoryEvictLower"),
        ({"resourceUsedThresholdWithBE": {"cpuEvictTimeWindowSeconds": 0}},
         "resourceUsedThresholdWithBE.cpuEvictTimeWindowSeconds", "not greater than 0"),
        ({"resourceUsedThresholdWithBE": {"allocatableEvictPriorityThreshold": 9000}},
         "resourceUsedThresholdWithBE.allocatableEvictPriorityThreshold", "greater than 7999"),
        ({"resourceQOSStrategy": {"beClass": {"cpuQOS": {"groupIdentity": 3}}}},
         "resourceQOSStrategy.beClass.cpuQOS.groupIdentity", "greater than 2"),
        ({"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"wmarkMinAdj": 51}}}},
         "resourceQOSStrategy.lsClass.memoryQOS.wmarkMinAdj", "greater than 50"),
        ({"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"catRangeStartPercent": 50}}}},
         "resourceQOSStrategy.beClass.resctrlQOS.catRangeEndPercent", "30 is not greater than"),
        ({"resourceQOSStrategy": {"policies": {"cpuPolicy": "x"}}},
         "resourceQOSStrategy.policies.cpuPolicy", "not one of groupIdentity, coreSched"),
        ({"resourceQOSStrategy": {"beClass": {"networkQOS": {"egressLimit": 101}}}},
         "resourceQOSStrategy.beClass.networkQOS.egressLimit", "101 percent"),
        ({"resourceQOSStrategy": {"beClass": {"networkQOS": {"egressLimit": "fast"}}}},
         "resourceQOSStrategy.beClass.networkQOS.egressLimit", "fast"),
        ({"resourceQOSStrategy": {"lsClass": {"networkQOS": {"ingressRequest": 80}},
                                  "beClass": {"networkQOS": {"ingressRequest": 40}}}},
         "resourceQOSStrategy.*.networkQOS.ingressRequest", "sum to 120"),
        ({"resourceQOSStrategy": {"lsClass": {"networkQOS": {"ingressRequest": "2G"}}},
          "systemStrategy": {"totalNetworkBandwidth": "1G"}},
         "resourceQOSStrategy.*.networkQOS.ingressRequest", "more than the total"),
        ({"resourceQOSStrategy": {"beClass": {"blkioQOS": {"blocks": [{"name": "vda", "type": "disk"}]}}}},
         "resourceQOSStrategy.beClass.blkioQOS.blocks[0].type", "'disk' is not one of"),
        ({"resourceQOSStrategy": {"beClass": {"blkioQOS": {"blocks": [
            {"name": "vda", "type": "device", "ioCfg": {"ioWeightPercent": 0}}]}}}},
         "resourceQOSStrategy.beClass.blkioQOS.blocks[0].ioCfg.ioWeightPercent", "not within 1 and 100"),
        ({"cpuBurstStrategy": {"policy": "always"}}, "cpuBurstStrategy.policy", "not one of none, cpuBurstOnly"),
        ({"cpuBurstStrategy": {"cfsQuotaBurstPercent": 50}}, "cpuBurstStrategy.cfsQuotaBurstPercent", "less than 100"),
        ({"systemStrategy": {"minFreeKbytesFactor": 0}}, "systemStrategy.minFreeKbytesFactor", "not greater than 0"),
        ({"hostApplications": [{"qos": "LS"}]}, "hostApplications[0].name", "must not be empty"),
        ({"hostApplications": [{"name": "a"}, {"name": "a"}]}, "hostApplications[1].name", "twice"),
        ({"hostApplications": [{"name": "a", "qos": "X"}]}, "hostApplications[0].qos", "not one of"),
        ({"hostApplications": [{"name": "a", "cgroupPath": {"base": "/"}}]},
         "hostApplications[0].cgroupPath.base", "not one of"),
        ({"extensions": {"interferenceStrategy": {"cpu": {"lostPercent": 300}}}},
         "extensions.interferenceStrategy", "cpu.lostPercent: 300 is greater than 100"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)  # fmt: skip
def test_invalid_specs(spec: dict[str, Any], field: str, reason: str) -> None:
    message = problems_of(spec)
    assert list(message) == [field]
    assert reason in message[field]


@pytest.mark.parametrize(
    ("app", "field", "reason"),
    [
        ({"name": "../../etc"}, "name", "upwards"),
        ({"name": "a\0b"}, "name", "control"),
        (
            {"name": "a", "cgroupPath": {"base": "CgroupRoot", "parentDir": "x/../.."}},
            "cgroupPath.parentDir",
            "upwards",
        ),
        ({"name": "a", "cgroupPath": {"base": "Kubepods", "relativePath": ".."}}, "cgroupPath.relativePath", "upwards"),
        ({"name": "a", "cgroupPath": {"base": "CgroupRoot", "relativePath": "/"}}, "cgroupPath", "root of all"),
        ({"name": "x" * 2000}, "name", "2000 characters"),
    ],
)
def test_directories_of_host_applications_do_not_lead_elsewhere(app: dict[str, Any], field: str, reason: str) -> None:
    ((path, text),) = problems_of({"hostApplications": [app]}).items()
    assert path == f"hostApplications[0].{field}" and reason in text


def test_slashes_around_directories_are_harmless() -> None:
    path = {"base": "CgroupRoot", "parentDir": "/host-latency-sensitive/", "relativePath": "nginx/"}
    assert problems_of({"hostApplications": [{"name": "nginx", "cgroupPath": path}]}) == {}
