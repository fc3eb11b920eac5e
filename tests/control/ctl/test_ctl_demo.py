"""The demo's frame: rendered manifests, one demo at a time, cleanup after an interrupt."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from control.ctl.demo import workload
from control.ctl.demo.__main__ import Interrupted, alone, keep_logs, play
from control.ctl.demo.scenario import Scenario
from control.ctl.errors import CtlError
from control.ctl.progress import TerminalProgress


@pytest.fixture(autouse=True)
def keep_signals() -> object:
    """`play` leaves signals ignored, as the process ends then."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_manifests_get_the_node_and_the_cores() -> None:
    pods = {
        obj["metadata"]["name"]: obj
        for objects in workload.rendered("n1", 3, 0).values()
        for obj in objects
        if obj["kind"] == "Pod"
    }
    assert sorted(pods) == sorted(workload.PODS)
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == {"n1"}
    cores = {name: pod["spec"]["containers"][0]["env"][0]["value"] for name, pod in pods.items()}
    assert cores == {"web": "3", "batch-0": "3", "batch-1": "3", "meter": "0"}
    classes = {name: pod["metadata"]["labels"]["koordinator.sh/qosClass"] for name, pod in pods.items()}
    assert classes == {"web": "LS", "batch-0": "BE", "batch-1": "BE", "meter": "LS"}


@pytest.mark.parametrize("folder", [workload.COLOCATION, workload.OVERCOMMIT])
def test_the_later_parts_of_the_demo_have_manifests(folder: Path) -> None:
    assert workload.rendered("n1", 3, 0, folder)


def test_the_neighbour_uses_the_shared_core_on_the_first_node_only() -> None:
    (objects,) = workload.rendered("", 3, 0, workload.MOVE, first_node="n1").values()
    (deployment,) = objects
    spec = deployment["spec"]["template"]["spec"]
    assert "nodeName" not in spec and spec["schedulerName"] == "koord-scheduler"
    values = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert values == {"DEMO_CPU": "3", "DEMO_OTHER_CPU": "0", "DEMO_NODE": "n1", "NODE_NAME": None}


def test_without_manifests_the_error_names_the_checkout(tmp_path: Path) -> None:
    with pytest.raises(CtlError, match="no manifests") as caught:
        workload.rendered("n1", 0, 0, tmp_path)
    assert "checkout" in caught.value.hint


def test_one_demo_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "build" / "demo"
    with alone(folder), pytest.raises(CtlError, match="another demo runs"), alone(folder):
        pass
    with alone(folder):
        assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("end", "once", "problems"),
    [
        (CtlError("no kubelet", "hint"), True, ["no kubelet"]),
        (Interrupted("SIGTERM"), True, ["interrupted by SIGTERM"]),
        (Interrupted("SIGINT"), False, ["interrupted by SIGINT"]),
        (None, True, []),
        (None, False, []),
    ],
    ids=["a part fails", "interrupted with --once", "interrupted half-way", "shown", "Ctrl-C while it stays up"],
)
def test_every_end_cleans_up(
    end: BaseException | None, once: bool, problems: list[str], tmp_path: Path, progress: TerminalProgress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def run(scenario: Scenario) -> None:
        logs = scenario.state_dir / "logs"
        logs.mkdir(parents=True)
        (logs / "kubelet.log").write_text("why\n")
        if end is not None:
            raise end

    def ctrl_c(_: float) -> None:
        raise Interrupted("SIGINT")

    monkeypatch.setattr("control.ctl.demo.__main__.time.sleep", ctrl_c)
    monkeypatch.setattr(Scenario, "commands_to_try", lambda _: ["  look"])
    monkeypatch.setattr(Scenario, "run", run)
    folder = tmp_path / "demo"
    assert play(folder, progress, once=once) == problems
    assert not folder.exists()
    kept = tmp_path / "demo-logs" / "kubelet.log"
    assert kept.exists() == bool(problems)


def test_logs_of_nothing(tmp_path: Path) -> None:
    assert keep_logs(tmp_path / "demo") is None
