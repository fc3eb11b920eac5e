"""Groups, schemata and tasks through the executor, on an emulated resctrl with the kernel's refusals."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.prometheus import Registries
from koordlet.resourceexecutor import resctrlgroups
from koordlet.resourceexecutor.executor import Executor, PassResult
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.resctrlgroups import CHECK_PERIOD_S, GROUP, L3, MB, MOUNT, TASKS, ResctrlStore
from koordlet.resourceexecutor.settings import DesiredSetting, Setting
from koordlet.system.errors import InvalidValue
from koordlet.system.resctrl import ResctrlFacts, check_mask, legal_mask, read_facts
from koordlet.system.write import WriteRefused
from tests.koordlet.conftest import MountedResctrl
from tests.koordlet.resourceexecutor.conftest import Recorder, ledger_at

kernel = pytest.mark.kernel


class Bench:
    """An executor with a resctrl store; `threads` are the threads of a cgroup directory."""

    def __init__(self, root: Path, ledger: Path) -> None:
        self.threads: dict[str, set[int]] = {}
        self.now = 0.0
        self.ledger = ledger
        self.root = root
        self.mounts: list[str] = []
        self.store = ResctrlStore(
            root, lambda path: self.threads.get(path, ()),
            mount=lambda _: self.mounts.append("mount"), unmount=lambda _: self.mounts.append("unmount"),
        )  # fmt: skip
        self.executor = self.fresh()

    def fresh(self, expected: tuple[str, ...] = ()) -> Executor:
        """As after kill -9: only the files on disk are left."""
        files = KernelFiles(None, None, [self.store])  # type: ignore[arg-type]
        self.executor = Executor(
            files, ledger_at(self.ledger), Recorder(), Registries(), expected=expected, clock=lambda: self.now,
        )  # fmt: skip
        return self.executor

    def desire(self, *updates: DesiredSetting, owner: str = "resctrl") -> PassResult:
        self.executor.declare(owner, updates)
        return self.executor.apply()

    def members(self, group: str) -> set[int]:
        return set(map(int, (self.root / group / "tasks").read_text().split()))


def group(name: str, l3: str = "0=f;1=f", mb: str = "", tasks: str = "") -> list[DesiredSetting]:
    updates = [DesiredSetting(Setting(GROUP, device=name), "present"), DesiredSetting(Setting(L3, device=name), l3)]
    if mb:
        updates.append(DesiredSetting(Setting(MB, device=name), mb))
    if tasks:
        updates.append(DesiredSetting(Setting(TASKS, device=name), tasks, neutral=""))
    return updates


@pytest.fixture
def bench(mounted_resctrl: MountedResctrl, tmp_path: Path) -> Bench:
    return Bench(mounted_resctrl.root, tmp_path / "ledger.json")


@contextlib.contextmanager
def sleepers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@kernel
def test_a_group_is_complete_after_one_pass_and_removed_by_restoring(
    mounted_resctrl: MountedResctrl, bench: Bench
) -> None:
    before = {path.name for path in bench.root.iterdir()}
    root_schemata = (bench.root / "schemata").read_text()
    assert bench.desire(*group("BE", "0=f;1=f", "0=90;1=90")).problems == {}
    assert mounted_resctrl.schemata("BE") == {"L3": {0: 0xF, 1: 0xF}, "MB": {0: 90, 1: 90}}
    assert bench.desire(*group("BE", "0=7ff;1=c", "0=90;1=90")).problems == {}
    assert mounted_resctrl.schemata("BE")["L3"] == {0: 0x7FF, 1: 0xC}
    assert bench.executor.restore_everything().problems == {}
    assert {path.name for path in bench.root.iterdir()} == before
    assert (bench.root / "schemata").read_text() == root_schemata
    assert bench.executor.originals == {}


@kernel
def test_an_equal_schemata_is_not_written(bench: Bench) -> None:
    bench.desire(*group("BE", "0=f;1=f", "0=90;1=90"))
    bench.now += 1000
    assert bench.desire(*group("BE", "0=f;1=f", "0=90;1=90")).written == []


@kernel
def test_groups_of_a_killed_koordlet_are_removed_once_all_owners_have_declared(bench: Bench) -> None:
    bench.desire(*group("BE"), *group("LS"))
    bench.fresh(expected=("resctrl", "resctrlpods"))
    assert bench.desire(*group("LS")).written == []
    assert (bench.root / "BE").is_dir()
    bench.executor.declare("resctrlpods", ())
    assert bench.executor.apply().problems == {}
    assert not (bench.root / "BE").exists()
    assert (bench.root / "LS").is_dir()


@kernel
def test_a_group_that_was_there_before_gets_its_schemata_back_and_stays(bench: Bench) -> None:
    (bench.root / "BE").mkdir()
    before = (bench.root / "BE/schemata").read_text()
    with sleepers(1) as (process,):
        bench.threads["pods/a"] = {process.pid}
        assert bench.desire(*group("BE", "0=3;1=3", "0=10;1=10", "pods/a")).problems == {}
        assert bench.members("BE") == {process.pid}
        assert bench.executor.restore_everything().problems == {}
        assert (bench.root / "BE/schemata").read_text() == before
        assert bench.members("BE") == set(), "back in the root group"


@kernel
def test_threads_follow_their_class_and_new_ones_are_moved(bench: Bench) -> None:
    with sleepers(3) as processes:
        first, second, late = (process.pid for process in processes)
        bench.threads |= {"pods/a": {first}, "pods/b": {second}}
        bench.desire(*group("LS", tasks="pods/a"), *group("BE", tasks="pods/b"))
        assert (bench.members("LS"), bench.members("BE")) == ({first}, {second})
        bench.threads["pods/a"] = {first, late}
        bench.now += 1
        assert bench.executor.apply().written == [], "not every round"
        bench.now += CHECK_PERIOD_S
        assert len(bench.executor.apply().written) == 1
        assert bench.members("LS") == {first, late}
        bench.desire(*group("LS"), *group("BE", tasks="pods/a pods/b"))
        assert (bench.members("LS"), bench.members("BE")) == (set(), {first, second, late})


@kernel
def test_many_threads_are_moved_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resctrlgroups, "MOVES_PER_PASS", 2)
    with sleepers(5) as processes:
        all_threads = {process.pid for process in processes}
        bench.threads["pods/a"] = all_threads
        bench.desire(*group("BE", tasks="pods/a"))
        moved = [len(bench.members("BE"))]
        for _ in range(2):
            bench.now += resctrlgroups.NEXT_MOVES_S
            bench.executor.apply()
            moved.append(len(bench.members("BE")))
        assert moved == [2, 4, 5]
        assert bench.members("BE") == all_threads


@kernel
def test_a_thread_that_has_ended_is_no_error(bench: Bench) -> None:
    with sleepers(2) as (ended, alive):
        ended.kill()
        ended.wait()
        bench.threads["pods/a"] = {ended.pid, alive.pid}
        result = bench.desire(*group("BE", tasks="pods/a"))
        assert result.problems == {}
        assert bench.members("BE") == {alive.pid}


@kernel
def test_no_thread_is_missed_while_a_process_creates_them(bench: Bench) -> None:
    """Threads of a real process that starts more of them during the check: later checks move those."""
    program = (
        "import threading,time,sys\n"
        "end=threading.Event()\n"
        "for n in range(60):\n"
        "    threading.Thread(target=end.wait,daemon=True).start(); time.sleep(0.002)\n"
        "print('all', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def threads() -> set[int]:
        return {int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()}

    bench.store._threads = lambda _: threads()
    try:
        bench.desire(*group("BE", tasks="pods/a"))
        assert process.stdout is not None
        assert process.stdout.readline() == "all\n"
        bench.now += 10
        bench.executor.apply()
        assert bench.members("BE") == threads()
        assert len(threads()) == 61
    finally:
        process.communicate()


@kernel
def test_groups_beyond_the_hardwares_number_are_problems_and_do_not_affect_others(
    mounted_resctrl: MountedResctrl, bench: Bench
) -> None:
    names = ["BE", "LS", "LSR", "koordlet-1", "koordlet-2"]
    result = bench.desire(*(update for name in names for update in group(name)))
    existing = {name for name in names if (bench.root / name).is_dir()}
    refused = {setting.device: cause for setting, cause in result.problems.items()}
    assert existing == {"BE", "LS", "LSR"}
    assert refused.keys() == {"koordlet-1", "koordlet-2"}
    assert "Out of CLOSIDs" in refused["koordlet-1"]
    bench.now += 10
    later = bench.desire(*(update for name in names[1:] for update in group(name)))
    assert not (bench.root / "BE").exists()
    assert (bench.root / "koordlet-1").is_dir() or "koordlet-1" in {s.device for s in later.problems}
    bench.now += 10
    bench.executor.apply()
    assert mounted_resctrl.schemata("koordlet-1")["L3"] == {0: 0xF, 1: 0xF}, "the free class of service is used"


@kernel
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (Setting(L3, device="BE"), "0=0;1=f"),
        (Setting(L3, device="BE"), "0=10000;1=f"),
        (Setting(L3, device="BE"), "f"),
        (Setting(MB, device="BE"), "0=x"),
        (Setting(GROUP, device="info"), "present"),
        (Setting(GROUP, device="../up"), "present"),
        (Setting(GROUP, device=""), "present"),
        (Setting(MOUNT), "yes"),
    ],
)
def test_values_that_the_kernel_refuses_are_not_written(bench: Bench, setting: Any, value: Any) -> None:
    with pytest.raises(InvalidValue):
        bench.store.check(setting, value)


@kernel
def test_a_problem_contains_the_kernels_message(mounted_resctrl: MountedResctrl, bench: Bench) -> None:
    bench.desire(*group("BE"))
    with pytest.raises(WriteRefused, match="MB value 2049 out of range"):
        bench.store.write(Setting(MB, device="BE"), "0=2049;1=2049")
    result = bench.desire(*group("BE", mb="0=2049;1=2049"))
    assert "out of range" in result.problems[Setting(MB, device="BE")]
    assert mounted_resctrl.schemata("BE")["L3"] == {0: 0xF, 1: 0xF}


@kernel
@pytest.mark.parametrize(
    ("facts", "mask", "accepted"),
    [
        pytest.param({"sparse_masks": 0}, "5", False, id="holes"),
        pytest.param({"sparse_masks": 1}, "5", True, id="holes where the hardware allows them"),
        pytest.param({"min_cbm_bits": 2}, "1", False, id="too narrow"),
        pytest.param({"min_cbm_bits": 2}, "3", True, id="wide enough"),
        pytest.param({"min_cbm_bits": 2, "sparse_masks": 1}, "b", True, id="first run wide enough"),
        pytest.param({"min_cbm_bits": 2, "sparse_masks": 1}, "d", False, id="first run too narrow"),
    ],
)
def test_masks_are_checked_against_the_hardwares_rules(
    mount_resctrl: Callable[..., MountedResctrl], tmp_path: Path, facts: Any, mask: Any, accepted: Any
) -> None:
    bench = Bench(mount_resctrl(**facts).root, tmp_path / "ledger.json")
    value = f"0={mask};1={mask}"
    with contextlib.nullcontext() if accepted else pytest.raises(InvalidValue):
        bench.store.check(Setting(L3, device="BE"), value)
    bench.desire(*group("BE", "0=7ff;1=7ff"))
    with contextlib.nullcontext() if accepted else pytest.raises(WriteRefused):
        bench.store.write(Setting(L3, device="BE"), value)  # the kernel decides the same


@kernel
def test_bandwidth_is_in_the_vendors_units(mounted_resctrl: MountedResctrl, bench: Bench) -> None:
    values = {"intel": {0: 100, 1: 60}, "amd": {0: 2048, 1: 104}}[mounted_resctrl.vendor]
    text = ";".join(f"{domain}={value}" for domain, value in values.items())
    assert bench.desire(*group("BE", mb=text)).problems == {}
    assert mounted_resctrl.schemata("BE")["MB"] == values


def test_resctrl_is_mounted_if_needed_and_only_then_unmounted(tmp_path: Path) -> None:
    root = tmp_path / "resctrl"
    root.mkdir()
    bench = Bench(root, tmp_path / "ledger.json")
    result = bench.desire(DesiredSetting(Setting(MOUNT), "on"), *group("BE"))
    assert bench.mounts == ["mount"]
    assert {setting.resource for setting in result.waiting} == {GROUP, L3}
    (root / "schemata").write_text("L3:0=7ff\n")  # now it is mounted
    bench.now += 100
    bench.executor.restore_everything()
    assert bench.mounts == ["mount", "unmount"]


def test_an_existing_mount_stays(tmp_path: Path) -> None:
    root = tmp_path / "resctrl"
    root.mkdir()
    (root / "schemata").write_text("L3:0=7ff\n")
    bench = Bench(root, tmp_path / "ledger.json")
    bench.desire(DesiredSetting(Setting(MOUNT), "on"))
    bench.executor.restore_everything()
    assert bench.mounts == []


bits = st.integers(1, 32)


@given(bits, st.integers(1, 4), st.integers(0, 99), st.integers(1, 100), st.booleans())
def test_masks_are_always_legal(ways: int, min_bits: int, start: int, end: int, sparse: bool) -> None:
    if start >= end:
        return
    facts = ResctrlFacts("x", (0,), (0,), cbm=(1 << ways) - 1, min_bits=min(min_bits, ways), sparse=sparse)
    mask = legal_mask(facts, start, end)
    check_mask(mask, facts)
    if end - start == 100:
        assert mask == facts.cbm


@kernel
def test_facts_of_a_mounted_one(mount_resctrl: Callable[..., MountedResctrl]) -> None:
    tree = mount_resctrl(min_cbm_bits=2, sparse_masks=1)
    (tree.root / "BE").mkdir()
    assert read_facts(tree.root, "v") == ResctrlFacts("v", (0, 1), (0, 1), tree.cbm_mask, 2, True, ("BE",))
    assert read_facts(tree.root / "nowhere", "v") is None
