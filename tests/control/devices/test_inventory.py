"""Device objects, well formed and not (spec 06 §3.2)."""

from __future__ import annotations

from typing import Any

import pytest

from control.devices.inventory import MAX_DEVICES, MAX_TYPES
from koordlet.api import names
from tests.control.devices.builddevices import inventory
from tests.control.scheduler.plugins.deviceworld import gpu, rdma


def test_an_unhealthy_device_has_no_amounts() -> None:
    devices = inventory(gpu(0), gpu(1, health=False))
    assert [bool(unit.total) for unit in devices.units["gpu"].values()] == [True, False]


def test_devices_are_ordered_by_minor_and_equal_layouts_ignore_ids() -> None:
    first, second = inventory(gpu(1), gpu(0)), inventory(gpu(0, id="other"), gpu(1))
    assert [*first.units["gpu"]] == [0, 1]
    assert first.layout == second.layout != inventory(gpu(0), gpu(1, health=False)).layout


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        ([gpu(0), gpu(0)], "spec.devices[1]: 'gpu' 0 is listed twice"),
        ([gpu(-1)], "spec.devices[0]: minor -1 is not from 0"),
        ([{"type": "gpu", "health": True}], "spec.devices[0]: minor None is not from 0"),
        ([gpu(0, type="")], "spec.devices[0]: the type is missing"),
        ([gpu(0, resources={"a": "-1"})], "spec.devices[0]: resource 'a' is negative"),
        ([rdma(1), {**rdma(1), "minor": 2}], "spec.devices[1]: virtual function '0000:11:00.1' belongs to two devices"),
        ([rdma(1, vfGroups=[{"vfs": [{"minor": 1}]}])], "spec.devices[0]: virtual function '' has no bus id"),
        ([gpu(minor) for minor in range(MAX_DEVICES + 1)], "more than 64 devices of type 'gpu'"),
        ([gpu(0, type=f"t{number}") for number in range(MAX_TYPES + 1)], "more than 8 types"),
    ],
)
def test_malformed_devices_are_named_and_the_rest_is_kept(devices: list[Any], error: str) -> None:
    found_devices = inventory(*devices)
    assert len(found_devices.errors) == 1 and error in found_devices.errors[0]
    assert sum(len(units) for units in found_devices.units.values()) == len(devices) - 1


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("{", names.ANNOTATION_GPU_PARTITIONS),
        ("null", "must be an object"),
        ('{"a": []}', "is not a number of GPUs"),
        ('{"2": [{"minors": [0]}]}', "[0] are not 2 different gpus"),
        ('{"2": [{"minors": [0, 0]}]}', "[0, 0] are not 2 different gpus"),
    ],
)
def test_a_malformed_partition_table_counts_as_none(table: str, error: str) -> None:
    devices = inventory(annotations={names.ANNOTATION_GPU_PARTITIONS: table})
    assert devices.partitions is None
    assert len(devices.errors) == 1 and error in devices.errors[0]


def test_a_device_object_that_is_gone_leaves_devices_without_amounts() -> None:
    gone = inventory(gpu(0), rdma(1)).without_devices()
    assert {kind: [dict(unit.total) for unit in units.values()] for kind, units in gone.units.items()} == {
        "gpu": [{}],
        "rdma": [{}],
    }
