"""What a koordlet does when the machine misbehaves: pods that come and go, kill -9, missing features, a full disk.

Everything that is missing is hidden within the koordlet's own mount namespace; the machine itself keeps it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.kernelfigures import run_delay_seconds
from tests.koordlet.process.koordletprocess import Koordlet
from tests.koordlet.process.patience import PATIENCE_S, until
from tests.koordlet.process.podtree import Container
from tests.koordlet.process.programs import BURN, SLEEP, duty
from tests.koordlet.process.view import View
from tests.koordlet.process.witness import boot_time

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

WAITED = "koordlet_sched_latency_wait_seconds_total"


@pytest.fixture(scope="module")
def tree(trees: Callable[..., Any]) -> Any:
    return trees()


@pytest.fixture(scope="module")
def pair(tree: Any, cpus: Any) -> Any:
    """An LS worker and a BE worker on one CPU, which they do not fill: many koordlets are started beside them."""
    (worker,), (batch,) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    worker.run(duty(0.02, 0.02), cpus[0])
    batch.run(duty(0.03, 0.05), cpus[0])
    return worker, batch


@pytest.fixture(scope="module")
def shared(tree: Any, pair: Any, views: Any, koordlets: Any) -> Any:
    """One koordlet for all tests that leave it running."""
    return koordlets(views(tree)).wait()


def _has_cpu(koordlet: Koordlet, container: Container) -> bool:
    return koordlet.row(container).get("cpu") is not None


def probe(koordlet: Any) -> dict[str, Any]:
    figures: dict[str, Any] = koordlet.top()["probes"][0]
    return figures


def conditions(koordlet: Any) -> dict[str, str]:
    return {condition["name"]: condition["reason"] for condition in koordlet.top()["conditions"]}


# --- pods that come and go


def test_a_container_made_again_under_its_name_gives_no_absurd_figure(shared: Any, tree: Any, cpus: Any) -> None:
    """Its counters begin at zero again; a pinned process cannot use more than one core."""
    (steady, flicker) = tree.pod(KubeQOS.BURSTABLE, 2)
    steady.run(SLEEP, cpus[1])
    flicker.run(BURN, cpus[1])
    until(lambda: shared.row(flicker).get("cpu"), "the container in /top")
    for _ in range(12):
        flicker.remove()
        flicker.make()
        flicker.run(BURN, cpus[1])
        time.sleep(0.15)
    moment = boot_time()
    until(lambda: shared.row(flicker).get("cpu", 0) > 0.2, "figures of the last one")
    series = shared.series(after=moment)
    for kind, key in (("container", flicker.key), ("pod", flicker.pod_uid)):
        times, values = series.samples[f"{kind}_cpu_usage", key]
        assert ((values >= 0) & (values <= 1.2)).all(), list(zip(times, values, strict=True))
        _, memory = series.samples[f"{kind}_memory_usage", key]
        assert (memory < 64 << 20).all()
    assert shared.value("koordlet_metric_cache_lost_samples_total") == 0
    for cause in ("unreadable", "series"):
        assert not shared.values("koordlet_collector_failures_total", cause=cause)
    tree.remove_pod(flicker.pod_uid, KubeQOS.BURSTABLE)


def test_pods_in_a_churn_leave_nothing_behind(shared: Any, tree: Any) -> None:
    """Neither descriptors nor rows in /top nor exported series grow with the pods that have been."""

    def held() -> dict[str, int]:
        families = shared.families("/external-metrics")
        return {
            "descriptors": len(os.listdir(f"/proc/{shared.process.pid}/fd")),  # noqa: PTH208
            "files": int(shared.value("koordlet_cgroup_files_open")),
            "rows": len(shared.top()["rows"]),
            "containers": len(families["koordlet_container_cpu_usage_cores"].samples),
        }

    until(lambda: held()["rows"] == held()["containers"], "a settled picture")
    before = held()
    for _ in range(8):
        pods = [tree.pod(KubeQOS.BESTEFFORT, 2) for _ in range(4)]
        for containers in pods:
            containers[0].run("time.sleep(100)")
        if _ in (3, 7):  # long enough for a first figure
            until(partial(_has_cpu, shared, pods[-1][0]), "a pod of the churn in /top")
        for containers in pods:
            tree.remove_pod(containers[0].pod_uid, KubeQOS.BESTEFFORT)
    until(lambda: held()["rows"] <= before["rows"], "the pods to go")
    # files of what stays may be opened only now (a spot check reads one cgroup a tick); those of 32 pods would show
    slack = {"descriptors": 12, "files": 12, "rows": 0, "containers": 0}
    until(
        lambda: all(value <= before[name] + slack[name] for name, value in held().items()),
        f"{before} again, at last {held()}",
    )
    for cause in ("unreadable", "series"):
        assert not shared.values("koordlet_collector_failures_total", cause=cause)


# --- kill -9 and stop


def test_kill_9_loses_no_count_and_no_window(tree: Any, pair: Any, views: Any, koordlets: Any) -> None:
    """The programs go on counting while no koordlet runs; the cache comes back and holds no sample twice."""
    worker, _ = pair
    view = views(tree)
    first = koordlets(view).wait()
    before = until(lambda: sum(first.values(WAITED, container_id=worker.key)), "waiting of the worker")
    assert probe(first)["source"] in ("bpf", "bcc")
    kept = first.series(after=boot_time())
    first.kill()
    pid = worker.processes[0].pid
    delay = run_delay_seconds(pid)
    until(lambda: run_delay_seconds(pid) - delay > 0.4, "waiting of the worker while no koordlet runs")
    away = run_delay_seconds(pid) - delay
    second = koordlets(view).wait()
    after = until(lambda: sum(second.values(WAITED, container_id=worker.key)), "waiting of the worker")
    total = run_delay_seconds(pid)
    assert before + 0.9 * away <= after, "what was waited while no koordlet ran is not counted"
    assert after <= total * 1.05 + 0.05, "waits are counted twice"
    series = second.series(after=boot_time())
    for key in (("node_cpu_usage",), ("container_cpu_usage", worker.key)):
        old, (times, values) = kept.samples[key][0], series.samples[key]
        assert set(old) <= set(times), "samples of before are missing"
        assert (times[1:] > times[:-1]).all(), "a moment is there twice"
        assert values.max() < 64
    second.terminate()
    assert "Metric cache restored" in second.log


def test_sigterm_leaves_neither_pins_nor_mounts(tree: Any, pair: Any, views: Any, koordlets: Any) -> None:
    """Also the bpf file system that koordlet itself mounted."""
    view = views(tree, bpffs=False)
    koordlet = koordlets(view).wait()
    mounts = Path(f"/proc/{view.holder.pid}/mountinfo")
    point = str(view.sys_fs / "bpf")
    assert point in mounts.read_text()
    assert list(view.pins.rglob("link_*"))
    assert "bpffs" not in conditions(koordlet)
    assert koordlet.value("koordlet_host_feature_supported", feature="bpffs") == 1
    assert koordlet.terminate() == 0
    assert point not in mounts.read_text()
    assert not list(view.pins.iterdir())
    assert sorted(path.name for path in view.state.iterdir()) == ["lock", "metrics.npz"]


def test_sigterm_while_probes_are_loaded_leaves_no_pins_either(tree: Any, views: Any, koordlets: Any) -> None:
    view = views(tree)
    koordlet = koordlets(view)
    until(lambda: list(view.pins.rglob("ready")), "the pins")
    assert koordlet.terminate() == 0, koordlet.log
    assert not (view.pins / "koordlet").exists()
    assert "Traceback" not in koordlet.log


def test_first_figures_wait_for_no_probe(tree: Any, pair: Any, views: Any, koordlets: Any) -> None:
    """They are there while a probe can't be loaded; all probes follow, and their collectors read them."""
    worker, _ = pair
    koordlet = koordlets(views(tree)).wait_for_figures()
    log = koordlet.log
    assert log.index('name="cgroup_stats"') < log.index("koordlet starts")
    koordlet.wait()
    log = koordlet.log
    for name in ("sched_latency", "mem_stall", "oom", "block_io", "net_stall"):
        assert log.index("koordlet starts") < log.index(f'name="{name}"'), name
    assert all(probe["up"] for probe in koordlet.top()["probes"]), koordlet.top()["probes"]
    until(lambda: koordlet.row(worker).get("sched"), "the container's latency")


# --- missing features


@pytest.fixture
def open_view(tree: Any) -> Iterator[Any]:
    """A folder that all users may read; pytest closes its own folders to other users at each start."""
    with tempfile.TemporaryDirectory(prefix=f"koord-process-{os.getpid()}-") as scratch:
        Path(scratch).chmod(0o755)
        view = View(tree, Path(scratch))
        yield view
        view.close()


def test_without_root_the_reason_is_reported_and_readable_figures_are_served(
    pair: Any, open_view: Any, koordlets: Any
) -> None:
    worker, batch = pair
    koordlet = koordlets(open_view, user=65534).wait()
    assert {"root", "cap_sys_admin"} <= conditions(koordlet).keys()
    assert "65534" in conditions(koordlet)["root"]
    figures = probe(koordlet)
    assert not figures["up"]
    assert figures["source"] == "schedstat"
    assert "CAP_SYS_ADMIN" in figures["reason"]
    row = until(
        lambda: (r := koordlet.row(worker)).get("sched", {}).get("wait", 0) > 0.01 and r, "waiting from schedstat"
    )
    assert row["cpu"] > 0.005
    assert "p99" not in row["sched"], "sums have no percentiles"
    assert koordlet.row(batch)["memory"] >= 0  # a few pages may not be counted yet
    assert koordlet.value("koordlet_host_feature_supported", feature="root") == 0
    assert koordlet.value("koordlet_probe_up", probe="sched_latency", source="schedstat") == 0
    # the state directory is root's: every failed snapshot is counted, nothing else suffers
    _until_snapshots_fail(koordlet)
    assert koordlet.terminate() == 1, "the last snapshot could not be written"


def _until_snapshots_fail(koordlet: Any) -> None:
    name = "koord_periodic_task_failures_total"
    until(lambda: sum(koordlet.values(name, task="metric-snapshot")) >= 2, "snapshots that fail")


def test_without_btf_it_reads_files_and_reports_the_reason(tree: Any, pair: Any, views: Any, koordlets: Any) -> None:
    """bcc where the kernel's headers are installed, else files."""
    koordlet = koordlets(views(tree, also=("mount -t tmpfs none /sys/kernel/btf",))).wait()
    figures = probe(koordlet)
    assert "btf" in conditions(koordlet)
    assert "core: " in figures["reason"]
    assert figures["source"] in ("bcc", "schedstat")
    if figures["source"] == "schedstat":
        assert "bcc: " in figures["reason"]
    until(lambda: koordlet.row(pair[0]).get("sched", {}).get("wait", 0) > 0.01, "waiting of the worker")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(["--mount-bpffs=false"], "is not a mounted bpf file system"), (["--bpf-pin-dir=/tmp"], "not within a bpf")],
    ids=["not mounted", "pins elsewhere"],
)
def test_without_a_place_for_pins_the_probe_lives_with_the_process(
    tree: Any, pair: Any, views: Any, koordlets: Any, flags: list[str], reason: str
) -> None:
    view = views(tree, bpffs="/tmp" in flags[0])
    koordlet = koordlets(view, *flags).wait()
    figures = probe(koordlet)
    assert figures["up"]
    assert reason in figures["reason"]
    until(lambda: koordlet.row(pair[0]).get("sched", {}).get("wait", 0) > 0.01, "waiting of the worker")
    assert koordlet.terminate() == 0


def test_without_pressure_the_rest_goes_on(tree: Any, pair: Any, views: Any, koordlets: Any) -> None:
    koordlet = koordlets(views(tree, also=("mount -t tmpfs none /proc/pressure",))).wait()
    assert "psi" in conditions(koordlet)
    assert not koordlet.values("koordlet_container_psi")
    row = until(lambda: (r := koordlet.row(pair[0])).get("cpu", 0) > 0.005 and r, "use of the worker")
    assert "pressure" not in row


def test_a_full_disk_costs_snapshots_only(tree: Any, pair: Any, views: Any, koordlets: Any) -> None:
    view = views(tree)
    subprocess.run(view.enter(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(view.state)]), check=True)
    view.from_outside(view.state).joinpath("full").write_bytes(b"x" * 4096)
    koordlet = koordlets(view).wait()
    _until_snapshots_fail(koordlet)
    names = sorted(path.name for path in view.from_outside(view.state).iterdir())
    assert names == ["full", "lock"], "half a snapshot stayed behind"
    until(lambda: koordlet.row(pair[0]).get("cpu", 0) > 0.005, "use of the worker")
    assert "No space left" in koordlet.log
    assert koordlet.terminate() == 1, "the last snapshot could not be written"


def test_a_damaged_snapshot_is_refused_and_replaced(tree: Any, pair: Any, views: Any, koordlets: Any) -> None:
    view = views(tree)
    damaged = b"PK\x03\x04 not a snapshot"
    (view.state / "metrics.npz").write_bytes(damaged)
    koordlet = koordlets(view, "--probes=off").wait()
    assert "Metric cache starts empty" in koordlet.log
    until(lambda: (view.state / "metrics.npz").read_bytes() != damaged, "a snapshot of its own")
    assert koordlet.series().samples


# --- the command line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--standalon"], "did you mean --standalone?"),
        (["--standalone", "--collect-res-used-interval=0.1s"], "must be at least 1s"),
        (["--standalone", "--probes=ebpf"], "must be one of auto, core, bcc, off"),
        (["--standalone", "--feature-gates=CPUSupress=true"], "CPUSuppress"),
        (["--standalone", "--addr=nowhere"], "--addr"),
        ([], "--standalone"),
        (["--node-name=n", "--kubeconfig=/nowhere/at/all"], "/nowhere/at/all"),
    ],
    ids=["near miss", "too small", "no choice", "unknown gate", "address", "no node name", "no kubeconfig"],
)
def test_a_command_line_that_cannot_be_used(flags: list[str], message: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("NODE_NAME", "KUBECONFIG")}
    done = subprocess.run(
        [sys.executable, "-m", "koordlet", *flags], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_ends_the_process_with_a_cause(shared: Any, tree: Any, views: Any, koordlets: Any) -> None:
    late = koordlets(views(tree), f"--addr=127.0.0.1:{shared.port}", "--probes=off")
    assert late.process.wait(PATIENCE_S) == 1
    assert "Address already in use" in late.log
    assert json.loads(shared.get("/top"))["node"] == "own-node"


# --- a second koordlet


def test_a_second_koordlet_ends_before_it_changes_anything(shared: Any, koordlets: Any) -> None:
    lock = shared.view.state / "lock"
    pins = sorted(path.name for path in (shared.view.pins / "koordlet").iterdir())
    second = koordlets(shared.view)
    assert second.process.wait(60) == 1
    assert "is locked: process" in second.log
    assert sorted(path.name for path in (shared.view.pins / "koordlet").iterdir()) == pins
    assert lock.read_text().strip() == str(shared.process.pid)
    assert shared.top()["node"]


def test_a_koordlet_without_its_port_ends_before_it_changes_anything(koordlets: Any, views: Any, tree: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        koordlet = koordlets(views(tree), f"--addr=127.0.0.1:{stranger.getsockname()[1]}")
        assert koordlet.process.wait(60) == 1
    assert "cannot listen on" in koordlet.log
    assert not (koordlet.view.pins / "koordlet").exists()
