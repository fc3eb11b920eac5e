"""Sources that read files, on trees in a temporary directory, and the fallback to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.probes.loading.bcc import load as load_bcc
from koordlet.probes.loading.frame import ProbeError, pin_key
from koordlet.probes.schedlatency.files import FilesUnavailable, PressureSource, SchedstatSource
from koordlet.probes.schedlatency.loader import build
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.probes.schedlatency.snapshot import diff
from koordlet.system.host import Host
from tests.koordlet.probes.opening import open_probes
from tests.koordlet.probes.rows import row_of
from tests.koordlet.roots import roots_under


class Files:
    """A cpu hierarchy and a /proc with threads in it."""

    def __init__(self, base: Path) -> None:
        self.roots = roots_under(base)
        self.cpu, self.proc = base / "cpu", self.roots.proc
        self.thread("self", 0)
        self.cpu.mkdir()

    def thread(self, tid: int | str, delay: int) -> None:
        (self.proc / str(tid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(tid) / "schedstat").write_text(f"123 {delay} 7\n")

    def group(self, name: str, *tids: int) -> int:
        directory = self.cpu / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "tasks").write_text("".join(f"{tid}\n" for tid in tids))
        return directory.stat().st_ino


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def waited(source: SchedstatSource | PressureSource, group: int) -> int:
    snapshot = source.read()
    row = row_of(snapshot, group)
    assert row is not None
    return int(snapshot.sum_ns[row])


def test_run_delay_is_summed_by_group_from_the_first_reading_on(files: Files) -> None:
    files.thread(10, 1000)
    files.thread(11, 50)
    pod = files.group("kubepods/pod1", 10, 11)
    source = SchedstatSource(files.cpu, files.roots)
    assert waited(source, pod) == 0, "the time before the first reading does not count"
    files.thread(10, 1500)
    files.thread(11, 80)
    assert waited(source, pod) == 530
    assert source.read().source == "schedstat"


def test_the_sum_does_not_fall_when_a_thread_ends(files: Files) -> None:
    files.thread(10, 0)
    files.thread(11, 0)
    pod = files.group("pod1", 10, 11)
    source = SchedstatSource(files.cpu, files.roots)
    source.read()
    files.thread(11, 400)
    before = source.read()
    files.group("pod1", 10)
    (files.proc / "11" / "schedstat").unlink()
    files.thread(10, 5)
    window = diff(before, source.read())
    assert window.sum_ns.tolist()[row_of(window, pod) or 0] == 5


def test_a_listed_thread_that_ended_is_left_out(files: Files) -> None:
    pod = files.group("pod1", 99)
    assert waited(SchedstatSource(files.cpu, files.roots), pod) == 0


def test_dead_cgroups_are_forgotten(files: Files) -> None:
    pod = files.group("pod1")
    source = SchedstatSource(files.cpu, files.roots)
    source.read()
    assert source.reclaim(frozenset({files.cpu.stat().st_ino})) == 1
    (files.cpu / "pod1" / "tasks").unlink()
    (files.cpu / "pod1").rmdir()
    assert row_of(source.read(), pod) is None


def test_a_kernel_without_schedstat_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FilesUnavailable, match="self/schedstat"):
        SchedstatSource(tmp_path, roots_under(tmp_path))


def test_pressure_totals_are_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "cpu.pressure").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )
    assert waited(PressureSource(tmp_path), tmp_path.stat().st_ino) == 1_234_000


def test_a_kernel_without_pressure_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FilesUnavailable, match="no cgroup2"):
        PressureSource(None)
    with pytest.raises(FilesUnavailable, match=r"no cpu\.pressure"):
        PressureSource(tmp_path)


def test_a_machine_without_any_source_has_a_status(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    (roots.sys / "devices/system/cpu").mkdir(parents=True)
    (roots.sys / "devices/system/cpu/possible").write_text("0-3\n")
    probes = open_probes(Host(roots))
    status = probes.status["sched_latency"]
    assert probes.sched_latency is None
    assert (status.loaded, status.source) == (False, "none")
    assert "schedstat: " in status.reason and "pressure: " in status.reason
    probes.close()


def test_switched_off_probes_have_a_status(tmp_path: Path) -> None:
    probes = open_probes(Host(roots_under(tmp_path)), "off")
    assert probes.sched_latency is None
    assert probes.status["sched_latency"].reason == "switched off"


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'ebpf' is none of auto, core, bcc, off"):
        open_probes(Host(roots_under(tmp_path)), "ebpf")


def test_bcc_needs_a_bpf_file_system() -> None:
    with pytest.raises(ProbeError, match="needs a bpf file system"):
        load_bcc(Sizes(cpus=1), False, None)


def test_pin_keys_differ_by_all_that_shapes_the_tables() -> None:
    keys = {
        pin_key(program, build(sizes, v2))
        for program in (b"a", b"b")
        for sizes in (Sizes(cpus=1), Sizes(cpus=2), Sizes(cpus=1, cgroups=64))
        for v2 in (False, True)
    }
    assert len(keys) == 12
