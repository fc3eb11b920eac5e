"""The daemon as a process, with tools that accept only the specification's commands."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devicedaemon.vendors import VENDORS
from devicedaemon.vendors.node import HostNode
from koordlet.api.deviceinfos import DeviceDescription
from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_XPU
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.facts.xpu import XpuCollector
from koordlet.prometheus import Registries
from tests.devicedaemon import vendortools as tools
from tests.devicedaemon.machine import Machine, all_texts
from tests.koordlet.roots import roots_under
from tests.waiting import wait_until

SHORT_INTERVAL = "--sleep-interval=50ms"
LONG_INTERVAL = "--sleep-interval=1h"
HUAWEI, KUNLUN = ["npu-0-0", "npu-4-1"], ["xpu-0", "xpu-1"]


async def expected(machine: Machine) -> list[DeviceDescription]:
    """The devices from the same texts and sysfs, without a process."""
    node = HostNode(tools.Scripted(all_texts()), roots_under(machine.base), machine.base / "dev")
    return [device for vendor in VENDORS for device in await vendor.discover(node)]


async def check_everything(machine: Machine) -> None:
    machine.plug()
    machine.install(all_texts())
    status, out, error = machine.once("--oneshot")
    assert (status, out) == (0, ""), error
    assert machine.devices() == await expected(machine)
    assert [device.vendor for device in machine.devices()] == [
        vendor for vendor in ("huawei", "cambricon", "kunlun", "metax", "iluvatar") for _ in range(2)
    ]
    assert set(machine.calls) == set(all_texts())
    assert [path.name for path in machine.out.iterdir()] == ["ic-device"]


async def test_all_vendors_are_discovered(machine: Machine) -> None:
    await check_everything(machine)


@pytest.mark.kernel
async def test_tools_run_in_the_hosts_file_system(machines: Callable[..., Machine]) -> None:
    await check_everything(machines(chroot=True))


def test_koordlet_reads_the_written_file(machine: Machine) -> None:
    machine.plug()
    machine.install(all_texts() | tools.huawei(first=1))
    assert machine.once("--oneshot")[0] == 0
    cache, registries = MetricCache(), Registries()
    XpuCollector(
        machine.out, cache, registries, CollectorConditions(registries), clock=lambda: 1.0, wall_ns=time.time_ns
    ).read()
    known = cache.facts.get(FACT_XPU)
    assert known is not None
    devices = machine.devices()
    assert [(x.vendor, x.model, x.uuid, str(x.minor), x.resources) for x in known] == [
        (d.vendor, d.model, d.uuid, d.minor, d.resources) for d in devices
    ]
    assert {x.uuid: x.fault.code for x in known if x.fault is not None} == {
        "npu-0-0": "ChipError",
        "GPU-one": "ECCError",
    }
    assert known[0].place.bus_id == "0000:c1:00.0" and known[0].place.pcie_id == "pci0000:c0"
    assert [(link.peer_minor, link.type) for link in known[0].links] == [("1", "HCCS")]


def test_a_broken_tool_does_not_affect_other_vendors(machine: Machine) -> None:
    machine.plug("0000:c1:00.0", "0000:0b:00.0")
    machine.install(tools.huawei() | tools.kunlun())
    process = machine.start(SHORT_INTERVAL)
    wait_until(lambda: machine.uuids() == HUAWEI + KUNLUN, "all devices")
    machine.install({"npu-smi info -m": 1})
    wait_until(lambda: machine.uuids() == KUNLUN, "the other vendor only, after some rounds")
    machine.install(tools.huawei())
    wait_until(lambda: machine.uuids() == HUAWEI + KUNLUN, "all devices again")
    assert machine.end(process) == 0


def test_a_machine_without_accelerators(machine: Machine) -> None:
    machine.plug("0000:00:1f.0")
    assert machine.once("--oneshot")[0] == 0
    assert json.loads(machine.path.read_text()) == []
    assert machine.calls == []
    status, out, _ = machine.once("--oneshot", "--prints-output-file=")
    assert (status, json.loads(out)) == (0, [])


def test_a_missing_sysfs_removes_no_device(machine: Machine) -> None:
    machine.plug("0000:0b:00.0")
    machine.install(tools.kunlun())
    process = machine.start(SHORT_INTERVAL)
    wait_until(lambda: machine.uuids() == KUNLUN, "the devices")
    (machine.base / "sys").rename(machine.base / "elsewhere")
    wait_until(lambda: "discovery of a vendor failed" in machine.log, "an error")
    (machine.base / "elsewhere").rename(machine.base / "sys")
    wait_until(lambda: machine.uuids() == KUNLUN, "the devices again")
    assert str(machine.base / "sys") in machine.log
    assert machine.end(process) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_the_daemon_and_removes_the_file(machine: Machine, number: signal.Signals) -> None:
    (machine.out / "ic-device-tmp").mkdir()
    (machine.out / ".ic-device12345").touch()
    (machine.out / "others").touch()
    process = machine.start(LONG_INTERVAL)
    wait_until(machine.path.exists, "the file")
    assert machine.end(process, number) == 0
    assert [path.name for path in machine.out.iterdir()] == ["others"]


def test_keep_output_keeps_the_file(machine: Machine) -> None:
    process = machine.start(LONG_INTERVAL, "--keep-output")
    wait_until(machine.path.exists, "the file")
    assert machine.end(process) == 0
    assert machine.path.exists()


def test_a_signal_does_not_wait_for_a_tool(machine: Machine) -> None:
    machine.plug("0000:0b:00.0")
    machine.install(tools.kunlun())
    machine.hold(on=True)
    process = machine.start(LONG_INTERVAL)
    wait_until(lambda: machine.calls, "a tool that hangs")
    assert machine.end(process) == 0
    assert not machine.path.exists()


def test_a_hanging_tool_affects_its_vendor_only(machine: Machine) -> None:
    machine.plug("0000:c1:00.0", "0000:0b:00.0")
    machine.install(tools.huawei() | tools.kunlun())
    path = machine.host / "usr/bin/npu-smi"
    path.write_text("#!/bin/sh\nexec sleep 1000\n")
    process = machine.start(SHORT_INTERVAL, "--tool-timeout=2s")
    wait_until(lambda: machine.uuids() == KUNLUN, "the other vendor's devices")
    assert machine.end(process) == 0


def configure(machine: Machine, path: Path, **more: object) -> dict[str, str]:
    kdd = {"printsOutputFile": str(path), "sleepInterval": "1h", **more}
    (machine.base / "kdd.yaml").write_text(json.dumps({"version": "v1", "flags": {"kdd": kdd}}))
    return {"KDD_CONFIG_FILE": str(machine.base / "kdd.yaml")}


def test_sighup_starts_a_round_and_the_file_stays_meanwhile(machine: Machine) -> None:
    machine.plug("0000:0b:00.0")
    machine.install(tools.kunlun())
    process = machine.start(**configure(machine, machine.path))
    wait_until(machine.path.exists, "the file")
    before, calls = machine.path.stat().st_ino, len(machine.calls)
    machine.hold(on=True)
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(machine.calls) > calls, "the next round")
    assert machine.path.stat().st_ino == before
    machine.hold(on=False)
    wait_until(lambda: machine.path.stat().st_ino != before, "its file")
    assert machine.uuids() == KUNLUN

    other = machine.out / "other"
    configure(machine, other)
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: other.exists() and not machine.path.exists(), "the file at its new path")
    (machine.base / "kdd.yaml").write_text("version: v2")
    before = other.stat().st_ino
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: other.stat().st_ino != before, "a round with the last valid configuration")
    assert machine.end(process) == 0
    assert not other.exists()


def test_an_unwritable_file_is_reported_and_retried(machine: Machine) -> None:
    machine.path.mkdir()
    status, _, error = machine.once("--oneshot")
    assert status == 1 and "Cannot write devices" in error
    process = machine.start(SHORT_INTERVAL)
    wait_until(lambda: "Cannot write devices" in machine.log, "the error")
    machine.path.rmdir()
    wait_until(machine.path.exists, "the file, after a retry")
    assert machine.end(process) == 0


def test_invalid_configurations_and_flags_end_the_start(machine: Machine) -> None:
    (machine.base / "kdd").write_text("version: v3")
    status, _, error = machine.once(f"--config-file={machine.base / 'kdd'}")
    assert status == 1 and "unknown version 'v3'" in error
    status, _, error = machine.once("--oneshot", KDD_SLEEP_INTERVAL="now")
    assert status == 1 and "KDD_SLEEP_INTERVAL" in error
    status, _, error = machine.once("--onceshot")
    assert status == 2 and "--oneshot" in error
    assert not machine.path.exists()


def test_the_configuration_is_printed(machine: Machine) -> None:
    _, _, error = machine.once("--oneshot", "--no-timestamp", KDD_SLEEP_INTERVAL="90s")
    start = error.index("{\n")
    configuration = json.loads(error[start : error.index("\n}\n") + 2])
    assert configuration == {
        "version": "v1",
        "flags": {
            "kdd": {
                "oneshot": True, "noTimestamp": True, "sleepInterval": "1m30s", "printsOutputFile": str(machine.path),
            }
        },
    }  # fmt: skip
