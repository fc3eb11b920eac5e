"""The whole daemon as a process, with tools that answer just what the specification asks them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devicedaemon.vendors import VENDORS
from koordlet.api.deviceinfos import DeviceDescription
from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_XPU
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.metricsadvisor.facts.xpu import XpuCollector
from koordlet.prometheus import Registries
from koordlet.system.roots import Roots
from tests.devicedaemon import vendortools as tools
from tests.devicedaemon.machine import Machine, all_texts, until

OFTEN = "--sleep-interval=50ms"
SELDOM = "--sleep-interval=1h"
HUAWEI, KUNLUN = ["npu-0-0", "npu-4-1"], ["xpu-0", "xpu-1"]


async def expected(machine: Machine) -> list[DeviceDescription]:
    """What the same texts make of the same sysfs without a process in between."""
    node = tools.Node(tools.Scripted(all_texts()), Roots.under(machine.base), machine.base / "dev")
    return [device for vendor in VENDORS for device in await vendor.discover(node)]


async def check_everything(machine: Machine) -> None:
    machine.plug()
    machine.install(all_texts())
    status, out, error = machine.once("--oneshot")
    assert (status, out) == (0, ""), error
    assert machine.devices() == await expected(machine)
    assert [one.vendor for one in machine.devices()] == [
        vendor for vendor in ("huawei", "cambricon", "kunlun", "metax", "iluvatar") for _ in range(2)
    ]
    assert set(machine.asked) == set(all_texts())
    assert [path.name for path in machine.out.iterdir()] == ["ic-device"]


async def test_every_vendor_at_once(machine: Machine) -> None:
    await check_everything(machine)


@pytest.mark.kernel
async def test_tools_run_in_the_hosts_file_system(machines: Callable[..., Machine]) -> None:
    await check_everything(machines(chroot=True))


def test_koordlet_reads_what_is_written(machine: Machine) -> None:
    machine.plug()
    machine.install(all_texts() | tools.huawei(first=1))
    assert machine.once("--oneshot")[0] == 0
    cache, registries = MetricCache(), Registries()
    XpuCollector(machine.out, cache, registries, Conditions(registries), clock=lambda: 1.0, wall_ns=time.time_ns).read()
    known = cache.facts.get(FACT_XPU)
    assert known is not None
    told = machine.devices()
    assert [(x.vendor, x.model, x.uuid, str(x.minor), x.resources) for x in known] == [
        (d.vendor, d.model, d.uuid, d.minor, d.resources) for d in told
    ]
    assert {x.uuid: x.fault.code for x in known if x.fault is not None} == {
        "npu-0-0": "ChipError",
        "GPU-one": "ECCError",
    }
    assert known[0].place.bus_id == "0000:c1:00.0" and known[0].place.pcie_id == "pci0000:c0"
    assert [(link.peer_minor, link.type) for link in known[0].links] == [("1", "HCCS")]


def test_a_broken_tool_leaves_the_others(machine: Machine) -> None:
    machine.plug("0000:c1:00.0", "0000:0b:00.0")
    machine.install(tools.huawei() | tools.kunlun())
    process = machine.start(OFTEN)
    until(lambda: machine.uuids() == HUAWEI + KUNLUN, "all devices")
    machine.install({"npu-smi info -m": 1})
    until(lambda: machine.uuids() == KUNLUN, "the others alone, after some rounds")
    machine.install(tools.huawei())
    until(lambda: machine.uuids() == HUAWEI + KUNLUN, "all devices again")
    assert machine.end(process) == 0


def test_a_machine_without_accelerators(machine: Machine) -> None:
    machine.plug("0000:00:1f.0")
    assert machine.once("--oneshot")[0] == 0
    assert json.loads(machine.path.read_text()) == []
    assert machine.asked == []
    status, out, _ = machine.once("--oneshot", "--prints-output-file=")
    assert (status, json.loads(out)) == (0, [])


def test_a_sysfs_that_is_not_mounted_takes_no_device_away(machine: Machine) -> None:
    machine.plug("0000:0b:00.0")
    machine.install(tools.kunlun())
    process = machine.start(OFTEN)
    until(lambda: machine.uuids() == KUNLUN, "the devices")
    (machine.base / "sys").rename(machine.base / "elsewhere")
    until(lambda: "could not be told" in machine.log, "a complaint")
    (machine.base / "elsewhere").rename(machine.base / "sys")
    until(lambda: machine.uuids() == KUNLUN, "the devices again")
    assert str(machine.base / "sys") in machine.log
    assert machine.end(process) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_it_and_takes_the_file_away(machine: Machine, number: signal.Signals) -> None:
    (machine.out / "ic-device-tmp").mkdir()
    (machine.out / ".ic-device12345").touch()
    (machine.out / "others").touch()
    process = machine.start(SELDOM)
    until(machine.path.exists, "the file")
    assert machine.end(process, number) == 0
    assert [path.name for path in machine.out.iterdir()] == ["others"]


def test_the_file_may_be_kept_for_the_next(machine: Machine) -> None:
    process = machine.start(SELDOM, "--keep-output")
    until(machine.path.exists, "the file")
    assert machine.end(process) == 0
    assert machine.path.exists()


def test_a_signal_does_not_wait_for_a_tool(machine: Machine) -> None:
    machine.plug("0000:0b:00.0")
    machine.install(tools.kunlun())
    machine.hold(on=True)
    process = machine.start(SELDOM)
    until(lambda: machine.asked, "a tool that hangs")
    assert machine.end(process) == 0
    assert not machine.path.exists()


def test_a_hung_tool_costs_its_vendor_only(machine: Machine) -> None:
    machine.plug("0000:c1:00.0", "0000:0b:00.0")
    machine.install(tools.huawei() | tools.kunlun())
    path = machine.host / "usr/bin/npu-smi"
    path.write_text("#!/bin/sh\nexec sleep 1000\n")
    process = machine.start(OFTEN, "--tool-timeout=2s")
    until(lambda: machine.uuids() == KUNLUN, "the other's devices")
    assert machine.end(process) == 0


def configure(machine: Machine, path: Path, **more: object) -> dict[str, str]:
    told = {"printsOutputFile": str(path), "sleepInterval": "1h", **more}
    (machine.base / "kdd.yaml").write_text(json.dumps({"version": "v1", "flags": {"kdd": told}}))
    return {"KDD_CONFIG_FILE": str(machine.base / "kdd.yaml")}


def test_sighup_begins_anew_and_the_file_stays_meanwhile(machine: Machine) -> None:
    machine.plug("0000:0b:00.0")
    machine.install(tools.kunlun())
    process = machine.start(**configure(machine, machine.path))
    until(machine.path.exists, "the file")
    before, asked = machine.path.stat().st_ino, len(machine.asked)
    machine.hold(on=True)
    process.send_signal(signal.SIGHUP)
    until(lambda: len(machine.asked) > asked, "the next round")
    assert machine.path.stat().st_ino == before
    machine.hold(on=False)
    until(lambda: machine.path.stat().st_ino != before, "its file")
    assert machine.uuids() == KUNLUN

    other = machine.out / "other"
    configure(machine, other)
    process.send_signal(signal.SIGHUP)
    until(lambda: other.exists() and not machine.path.exists(), "the file in its new place")
    (machine.base / "kdd.yaml").write_text("version: v2")
    before = other.stat().st_ino
    process.send_signal(signal.SIGHUP)
    until(lambda: other.stat().st_ino != before, "a round by the last good configuration")
    assert machine.end(process) == 0
    assert not other.exists()


def test_a_file_that_can_not_be_written(machine: Machine) -> None:
    machine.path.mkdir()
    status, _, error = machine.once("--oneshot")
    assert status == 1 and "can't be written" in error
    process = machine.start(OFTEN)
    until(lambda: "can't be written" in machine.log, "its complaint")
    machine.path.rmdir()
    until(machine.path.exists, "the file, tried again")
    assert machine.end(process) == 0


def test_what_it_can_not_begin_with(machine: Machine) -> None:
    (machine.base / "kdd").write_text("version: v3")
    status, _, error = machine.once(f"--config-file={machine.base / 'kdd'}")
    assert status == 1 and "unknown version 'v3'" in error
    status, _, error = machine.once("--oneshot", KDD_SLEEP_INTERVAL="now")
    assert status == 1 and "KDD_SLEEP_INTERVAL" in error
    status, _, error = machine.once("--onceshot")
    assert status == 2 and "--oneshot" in error
    assert not machine.path.exists()


def test_the_configuration_is_told(machine: Machine) -> None:
    _, _, error = machine.once("--oneshot", "--no-timestamp", KDD_SLEEP_INTERVAL="90s")
    start = error.index("{\n")
    told = json.loads(error[start : error.index("\n}\n") + 2])
    assert told == {
        "version": "v1",
        "flags": {
            "kdd": {
                "oneshot": True, "noTimestamp": True, "sleepInterval": "1m30s", "printsOutputFile": str(machine.path),
            }
        },
    }  # fmt: skip
