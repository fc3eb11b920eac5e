"""Notices of strategies reach the audit log, Events and counts."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.equivalents import WAYS, equivalents
from koordlet.qosmanager.engine.notices import NoticePublisher
from koordlet.qosmanager.engine.strategy import Notice
from tests.koordlet.qosmanager.conftest import make_pod

POD = make_pod("burn", qos="BE").meta


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def event(self, about: Any, type: str, reason: str, message: str) -> None:
        self.calls.append((about.namespace, about.name, about.uid, type, reason, message))

    def record(self, level: int, about: Any, reason: str, message: str = "", *, details: Any = None) -> None:
        self.calls.append((level, about.namespace, about.name, reason, message, details))


@pytest.mark.parametrize(
    ("fields", "events"),
    [
        ({}, []),
        ({"event": "less"}, [("default", "burn", "uid-burn", "Normal", "Why", "less")]),
        ({"event": "less", "warning": True}, [("default", "burn", "uid-burn", "Warning", "Why", "less")]),
    ],
    ids=["audit-only", "event", "warning"],
)
def test_a_notice_is_published(fields: dict[str, Any], events: list[tuple[str, str, str, str, str, str]]) -> None:
    events_sent, audited, registries = Recorder(), Recorder(), Registries()
    registries.node = "n"
    publish = NoticePublisher(events_sent, audited, registries)  # type: ignore[arg-type]
    counts = ("interference_action_steps_total", "cpu", "tighten")
    publish(Notice(POD, "Why", "cpu: 80 % left", details={"level": 80}, counts=counts, **fields))
    assert events_sent.calls == events
    assert audited.calls == [(1, "default", "burn", "Why", "cpu: 80 % left", {"level": 80})]
    labels = {"node": "n", "resource": "cpu", "step": "tighten"}
    assert registries.external.get_sample_value("koordlet_interference_action_steps_total", labels) == 1
    publish(Notice(POD, "Why", "again"))
    assert registries.external.get_sample_value("koordlet_interference_action_steps_total", labels) == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.bvt_warp_ns", "memory.wmark_ratio", "memory.priority"},
         {"cpuQOS.groupIdentity": "vendor", "memoryQOS.wmarkRatio": "vendor", "memoryQOS.priority": "vendor"}),
        ({"cpu.idle", "memory.reclaim", "memory.high", "memory.low"},
         {"cpuQOS.groupIdentity": "stock", "memoryQOS.wmarkRatio": "stock", "memoryQOS.priority": "stock"}),
        ({"cpu.idle", "cpu.cfs_burst_us"},
         {"cpuBurstPercent": "stock", "memoryQOS.wmarkRatio": "none", "memoryQOS.minLimitPercent": "none",
          "interferenceStrategy.actions.memory": "stock"}),
    ],
    ids=["vendor", "v2", "v1"],
)  # fmt: skip
def test_the_meaning_of_a_field_depends_on_the_kernels_files(files: set[str], expected: dict[str, str]) -> None:
    by_field = {
        setting.field: setting for setting in equivalents(lambda resource, directory: resource in files, "kubepods")
    }
    assert set(by_field) == set(WAYS)
    assert {field: by_field[field].kernel for field in expected} == expected
    assert all(settings.means for settings in by_field.values())
