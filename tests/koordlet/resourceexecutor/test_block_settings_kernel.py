"""Block I/O settings on the real kernel, v1 or v2, with a loop device that the test creates."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.qosmanager.strategies.blkio import BlkIO
from koordlet.resourceexecutor.blockio import BFQ_WEIGHT, MODEL, QOS, THROTTLES, WEIGHT, BlockStore
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.settings import DesiredSetting, Setting
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.devices.storage import LocalStorage
from koordlet.system.errors import InvalidValue
from koordlet.system.host import Host
from tests.conftest import ChildCgroup
from tests.koordlet.qosmanager.conftest import make_view
from tests.koordlet.resourceexecutor.conftest import Recorder, ledger_at
from tests.present import present

pytestmark = pytest.mark.kernel

MIB = 1 << 20
READER = """
import mmap, os, sys
buffer, disk = mmap.mmap(-1, 1 << 16), os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
for at in range(0, int(sys.argv[2]), 1 << 16):
    assert os.preadv(disk, [buffer], at) == 1 << 16
print("done", flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if not Path("/dev/loop0").exists():
        subprocess.run(["modprobe", "loop"], check=True)
    backing = tmp_path / "disk"
    with backing.open("wb") as file:
        file.truncate(16 * MIB)
    losetup = subprocess.run(["losetup", "--find", "--show", backing], check=True, capture_output=True, text=True)
    yield Path(losetup.stdout.strip())
    subprocess.run(["losetup", "--detach", losetup.stdout.strip()], check=True)


@pytest.fixture
def number(disk: Path) -> str:
    return (Path("/sys/block") / disk.name / "dev").read_text().strip()


@pytest.fixture
def store(kernel_fs: CgroupFS) -> BlockStore:
    return BlockStore(kernel_fs)


@pytest.fixture
def make(store: BlockStore, kernel_fs: CgroupFS, kernel_host: Host, tmp_path: Path) -> Callable[[], Executor]:
    def executor() -> Executor:
        files = KernelFiles(kernel_fs, kernel_host.roots, [store])
        return Executor(files, ledger_at(tmp_path / "ledger.json"), Recorder(), Registries())

    return executor


def strategy_for(store: BlockStore, disk: Path, number: str) -> BlkIO:
    return BlkIO(lambda: LocalStorage({str(disk): number}, {}, {}, {}, {}), store.supports)


def settings_of(
    store: BlockStore, disk: Path, number: str, directory: str, **config: int
) -> tuple[DesiredSetting, ...]:
    blocks = [{"name": str(disk), "type": "device", "ioCfg": config}]
    slo = {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": blocks}}}}
    decision = strategy_for(store, disk, number).decide(make_view(slo=slo, qos_dirs={"BestEffort": directory}))
    assert decision is not None
    return decision.updates


def text_of(group: object, version: int) -> dict[str, str]:
    """Content of the kernel's files with limits."""
    path = group.path("blkio" if version == 1 else "io")  # type: ignore[attr-defined]
    names = list(THROTTLES) if version == 1 else ["io.max"]
    return {name: (path / name).read_text().strip() for name in names}


def test_limits_are_written_and_removed_when_restored(
    store: BlockStore,
    disk: Path,
    number: str,
    cgroup_child: Callable[..., ChildCgroup],
    make: Callable[[], Executor],
    kernel_host: Host,
) -> None:
    group, version = cgroup_child(), kernel_host.facts.cgroup_version
    before = text_of(group, version)
    executor = make()
    executor.declare("blkio", settings_of(store, disk, number, group.dir, readIOPS=50, readBPS=MIB, writeBPS=2 * MIB))
    assert executor.apply().problems == {}
    content = text_of(group, version)
    if version == 1:
        assert content["blkio.throttle.read_bps_device"] == f"{number} {MIB}"
        assert content["blkio.throttle.read_iops_device"] == f"{number} 50"
        assert content["blkio.throttle.write_iops_device"] == ""
    else:
        assert content["io.max"] == f"{number} rbps={MIB} wbps={2 * MIB} riops=50 wiops=max"
    assert make().apply().written != [], "as after kill -9: no owner desires it any more"
    assert text_of(group, version) == before


def test_a_limited_group_reads_at_most_its_limit(
    store: BlockStore,
    disk: Path,
    number: str,
    cgroup_child: Callable[..., ChildCgroup],
    spawn: Callable[..., subprocess.Popen[str]],
    make: Callable[[], Executor],
) -> None:
    group = cgroup_child()
    executor = make()
    executor.declare("blkio", settings_of(store, disk, number, group.dir, readBPS=MIB))
    assert executor.apply().problems == {}
    started = time.monotonic()
    reader = spawn([sys.executable, "-S", "-E", "-c", READER, str(disk), str(3 * MIB)], group)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "done\n"
    assert time.monotonic() - started >= 2.0, "three MiB at one MiB a second, a burst allowed"
    executor.declare("blkio", settings_of(store, disk, number, group.dir, readBPS=500 * MIB))
    assert executor.apply().problems == {}
    assert store.read(Setting("blkio.throttle.read_bps_device", group.dir, number)) == str(500 * MIB)


def test_settings_of_other_devices_are_not_changed(
    store: BlockStore, disk: Path, number: str, cgroup_child: Callable[..., ChildCgroup], make: Callable[[], Executor]
) -> None:
    group, other = cgroup_child(), "7:250"
    setting = Setting("blkio.throttle.read_bps_device", group.dir, number)
    store.write(setting, str(7 * MIB))
    executor = make()
    executor.declare("blkio", settings_of(store, disk, number, group.dir, readBPS=MIB))
    assert executor.apply().problems == {}
    executor.restore_everything()
    assert store.read(setting) == str(7 * MIB), "what was there before"
    assert store.read(Setting("blkio.throttle.read_bps_device", group.dir, other)) == "0"
    store.write(setting, "0")
    assert store.read(setting) == "0"


def test_weights_on_kernels_that_support_them(
    store: BlockStore,
    disk: Path,
    number: str,
    cgroup_child: Callable[..., ChildCgroup],
    make: Callable[[], Executor],
    kernel_host: Host,
) -> None:
    """By bfq on v1, which weighs only devices that it schedules; by io.cost on v2, which weighs only devices with an
    enabled model."""
    group, version = cgroup_child(), kernel_host.facts.cgroup_version
    file = WEIGHT if version == 2 else BFQ_WEIGHT
    assert store.supports(file, group.dir)
    scheduler = Path("/sys/block") / disk.name / "queue/scheduler"
    updates = list(settings_of(store, disk, number, group.dir, ioWeightPercent=40))
    if version == 1:
        scheduler.write_text("bfq")
    else:
        line = "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000"
        updates.append(DesiredSetting(Setting(QOS, "", number), line))
    try:
        executor = make()
        executor.declare("blkio", updates)
        assert executor.apply().problems == {}
        assert store.read(Setting(file, group.dir, number)) == "40"
        assert executor.restore_everything().problems == {}
        assert store.read(Setting(file, group.dir, number)) == "100"
    finally:
        if version == 1:
            scheduler.write_text("none")


def test_the_cost_model_of_the_root(
    store: BlockStore, disk: Path, number: str, make: Callable[[], Executor], kernel_host: Host
) -> None:
    """On v2. A stock v1 kernel has none: this is reported and affects no other setting."""
    blocks = [{"name": str(disk), "type": "device", "ioCfg": {"readLatency": 5000}}]
    slo = {"resourceQOSStrategy": {"cgroupRoot": {"blkioQOS": {"enable": True, "blocks": blocks}}}}
    decision = strategy_for(store, disk, number).decide(make_view(slo=slo))
    if kernel_host.facts.cgroup_version == 1:
        assert present(decision).updates == ()
        assert "no I/O cost controller" in present(decision).note
        return
    executor = make()
    assert decision is not None
    executor.declare("blkio", decision.updates)
    assert executor.apply().problems == {}
    line = next(row for row in Path("/sys/fs/cgroup/io.cost.qos").read_text().splitlines() if row.startswith(number))
    assert line.split()[1:4] == ["enable=1", "ctrl=user", "rpct=95.00"]
    assert "rlat=5000" in line
    assert store.read(Setting(QOS, "", number)) == "enable=1 ctrl=user rpct=95 rlat=5000 wpct=95 wlat=3000"
    assert executor.restore_everything().problems == {}
    assert store.read(Setting(QOS, "", number)) == "enable=0 ctrl=auto"
    assert store.read(Setting(MODEL, "", number)) == "ctrl=auto"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (Setting("blkio.throttle.read_bps_device", "x", "7"), "1"),
        (Setting("blkio.throttle.read_bps_device", "x", "7:0"), "-1"),
        (Setting(WEIGHT, "x", "7:0"), "101"),
        (Setting(QOS, "x", "7:0"), "enable=1 ctrl=user rpct=1 rlat=1 wpct=1 wlat=1"),
        (Setting(QOS, "", "7:0"), "enable=1 ctrl=user rpct=a rlat=1 wpct=1 wlat=1"),
    ],
)
def test_invalid_settings_are_refused_without_a_write(store: BlockStore, setting: Any, value: Any) -> None:
    with pytest.raises(InvalidValue):
        store.check(setting, value)
