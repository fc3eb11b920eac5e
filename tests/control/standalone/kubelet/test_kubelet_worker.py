"""Pods in virtual time: starting, restarting, probing, stopping."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from control.standalone.kubelet.runtimes.runtime import SandboxConfig

MAIN = {"name": "main", "image": "busybox", "command": ["sleep", "1d"]}


async def test_a_pod_starts_and_reports_its_status(world: Any, pod: Any) -> None:
    created = world.api.create_pod(pod())
    await world.settle()
    status = world.status("web")
    assert status["phase"] == "Running"
    assert status["qosClass"] == "BestEffort"
    assert status["hostIP"] == status["podIP"] == "127.0.0.1"
    container = world.container("web")
    assert container["ready"] is True
    assert container["started"] is True
    assert container["restartCount"] == 0
    assert container["state"].keys() == {"running"}
    info = world.runtime.find("main")
    assert container["containerID"] == f"containerd://{info.id}"
    assert len(info.id) == 64
    uid = created["metadata"]["uid"]
    assert info.cgroup == f"kubepods/besteffort/pod{uid}/{info.id}"
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions == dict.fromkeys(
        ("PodScheduled", "Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers"), "True"
    )


async def test_sandbox_and_container_are_the_only_directories_of_a_pod(world: Any, pod: Any) -> None:
    uid = world.api.create_pod(pod())["metadata"]["uid"]
    await world.settle()
    ids = {i.id for i in world.runtime.infos.values()}
    assert set(world.tree.children(f"kubepods/besteffort/pod{uid}")) == ids
    assert len(ids) == 2


async def test_back_off_is_ten_seconds_doubling_to_five_minutes(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    waits = []
    for _ in range(8):
        world.runtime.exit("main", 1)
        await world.settle()
        before, begin = world.runtime.starts("main"), world.clock.monotonic()
        if world.runtime.find("main").running:
            waits.append(0.0)  # the first restart is at once
            continue
        state = world.container("web")["state"]["waiting"]
        assert state["reason"] == "CrashLoopBackOff"
        assert "restarting failed container=main pod=web_default(" in state["message"]
        while world.runtime.starts("main") == before:
            await world.advance(1)
        waits.append(world.clock.monotonic() - begin)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    assert world.container("web")["restartCount"] == 8


async def test_back_off_is_reset_after_ten_minutes_of_running(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    world.runtime.exit("main", 1)
    await world.settle()
    assert world.runtime.starts("main") == 2
    await world.advance(601)
    world.runtime.exit("main", 1)
    await world.settle()
    assert world.runtime.starts("main") == 3


async def test_a_crash_looping_container_shows_its_last_state(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    for code in (1, 137):
        world.runtime.exit("main", code, "OOMKilled" if code == 137 else None)
        await world.settle()
    container = world.container("web")
    assert container["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert container["lastState"]["terminated"]["exitCode"] == 137
    assert container["ready"] is False
    assert world.status("web")["phase"] == "Running"
    assert "BackOff" in world.events.reasons()


@pytest.mark.parametrize(
    ("policy", "code", "phase", "starts"),
    [
        ("Always", 0, "Running", 2),
        ("Always", 1, "Running", 2),
        ("OnFailure", 0, "Succeeded", 1),
        ("OnFailure", 1, "Running", 2),
        ("Never", 0, "Succeeded", 1),
        ("Never", 1, "Failed", 1),
    ],
)
async def test_restart_policy(world: Any, pod: Any, policy: str, code: int, phase: str, starts: int) -> None:
    uid = world.api.create_pod(pod(restartPolicy=policy))["metadata"]["uid"]
    await world.settle()
    world.runtime.exit("main", code)
    await world.settle()
    assert world.status("web")["phase"] == phase
    assert world.runtime.starts("main") == starts
    if phase in ("Succeeded", "Failed"):
        assert not world.tree.exists(f"kubepods/besteffort/pod{uid}"), "a finished pod has no cgroup"
        assert world.container("web")["state"]["terminated"]["exitCode"] == code
        assert world.condition("web", "Ready") == "False"


async def test_init_containers_run_one_after_the_other(world: Any, pod: Any) -> None:
    inits = [{"name": n, "image": "x", "command": ["true"]} for n in ("a", "b")]
    world.api.create_pod(pod(init=inits))
    await world.settle()
    assert [c.name for c in world.runtime.configs] == ["a"]
    assert world.status("web")["phase"] == "Pending"
    assert world.condition("web", "Initialized") == "False"
    assert world.container("web")["state"]["waiting"]["reason"] == "PodInitializing"
    world.runtime.exit("a", 0)
    await world.settle()
    assert [c.name for c in world.runtime.configs] == ["a", "b"]
    world.runtime.exit("b", 0)
    await world.settle()
    assert [c.name for c in world.runtime.configs] == ["a", "b", "main"]
    assert world.status("web")["phase"] == "Running"
    assert [s["ready"] for s in world.status("web")["initContainerStatuses"]] == [True, True]


async def test_a_failing_init_container_is_restarted_or_fails_the_pod(world: Any, pod: Any) -> None:
    init = [{"name": "a", "image": "x", "command": ["false"]}]
    world.api.create_pod(pod("again", init=init))
    world.api.create_pod(pod("once", init=[{**init[0], "name": "o"}], restartPolicy="Never"))
    await world.settle()
    world.runtime.exit("a", 1)
    world.runtime.exit("o", 1)
    await world.settle()
    assert world.runtime.starts("a") == 2
    assert world.status("again")["phase"] == "Pending"
    assert world.status("once")["phase"] == "Failed"
    assert world.runtime.starts("o") == 1
    assert world.runtime.starts("main") == 0


async def test_a_sidecar_starts_first_restarts_alone_and_stops_last(world: Any, pod: Any) -> None:
    sidecar = {"name": "side", "image": "x", "command": ["s"], "restartPolicy": "Always"}
    world.api.create_pod(pod(init=[sidecar], restartPolicy="Never"))
    await world.settle()
    assert [c.name for c in world.runtime.configs] == ["side", "main"]
    world.runtime.exit("side", 1)
    await world.settle()
    assert world.runtime.starts("side") == 2, "a sidecar is restarted regardless of the pod's policy"
    world.runtime.exit("main", 0)
    await world.settle()
    assert world.runtime.signals == [("side", signal.SIGTERM)]
    assert world.status("web")["phase"] == "Succeeded"


async def test_sidecar_waits_for_its_startup_probe(world: Any, pod: Any) -> None:
    probe = {"exec": {"command": ["up"]}, "periodSeconds": 5}
    sidecar = {"name": "side", "image": "x", "command": ["s"], "restartPolicy": "Always", "startupProbe": probe}
    world.runtime.exec_code["up"] = 1
    world.api.create_pod(pod(init=[sidecar]))
    await world.settle()
    assert world.runtime.starts("main") == 0
    world.runtime.exec_code["up"] = 0
    await world.advance(5)
    assert world.runtime.starts("main") == 1


async def test_graceful_deletion_terminates_then_deletes_the_object(world: Any, pod: Any) -> None:
    uid = world.api.create_pod(pod())["metadata"]["uid"]
    await world.settle()
    world.api.delete_pod("web")
    await world.settle()
    assert world.runtime.signals == [("main", signal.SIGTERM)]
    assert world.api.pod("web") is None
    assert world.runtime.infos == {}
    assert not world.tree.exists(f"kubepods/besteffort/pod{uid}")
    assert not (world.root / "pods" / uid).exists()
    last = [body for method, path, body in world.api.calls if path.endswith("web/status")][-1]
    assert last["status"]["phase"] == "Failed"
    assert last["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143


async def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_period(world: Any, pod: Any) -> None:
    world.runtime.stubborn.add("main")
    world.api.create_pod(pod(terminationGracePeriodSeconds=20))
    await world.settle()
    world.api.delete_pod("web")
    await world.advance(19)
    assert world.runtime.killed == []
    assert world.api.pod("web") is not None
    await world.advance(2)
    assert world.runtime.killed == ["main"]
    assert world.api.pod("web") is None


async def test_a_second_delete_may_shorten_the_grace_period(world: Any, pod: Any) -> None:
    world.runtime.stubborn.add("main")
    world.api.create_pod(pod(terminationGracePeriodSeconds=300))
    await world.settle()
    world.api.delete_pod("web")
    await world.advance(5)
    world.api.delete_pod("web", grace=2)
    await world.advance(3)
    assert world.runtime.killed == ["main"]
    assert world.api.pod("web") is None


async def test_a_force_deleted_pod_is_stopped_without_further_requests(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    world.api.calls.clear()
    world.api.delete_pod("web", grace=0)
    await world.settle()
    assert world.runtime.infos == {}
    assert world.kubelet.workers == {}
    assert [c for c in world.api.calls if "/pods/" in c[1]] == []


async def test_a_reused_name_is_another_pod(world: Any, pod: Any) -> None:
    world.runtime.stubborn.add("main")
    first = world.api.create_pod(pod(terminationGracePeriodSeconds=10))["metadata"]["uid"]
    await world.settle()
    world.api.delete_pod("web", grace=0)  # the API object is deleted at once, the processes are still stopping
    second = world.api.create_pod(pod())["metadata"]["uid"]
    await world.settle()
    assert set(world.kubelet.workers) == {first, second}
    await world.advance(11)
    assert set(world.kubelet.workers) == {second}
    assert world.status("web")["phase"] == "Running"
    assert world.container("web")["state"].keys() == {"running"}


async def test_the_pre_stop_hook_runs_within_the_grace_period(world: Any, pod: Any) -> None:
    hook = {"preStop": {"exec": {"command": ["drain"]}}}
    world.api.create_pod(pod(containers=[{**MAIN, "lifecycle": hook}]))
    await world.settle()
    world.api.delete_pod("web")
    await world.settle()
    assert world.runtime.execs == [("main", ("drain",))]
    assert world.runtime.signals == [("main", signal.SIGTERM)]


async def test_a_failing_post_start_hook_stops_the_container(world: Any, pod: Any) -> None:
    world.runtime.exec_code["greet"] = 1
    hook = {"postStart": {"exec": {"command": ["greet"]}}}
    world.api.create_pod(pod(containers=[{**MAIN, "lifecycle": hook}]))
    await world.settle()
    assert "FailedPostStartHook" in world.events.reasons()
    assert world.runtime.starts("main") == 2
    assert world.container("web")["state"]["waiting"]["reason"] == "CrashLoopBackOff"


async def test_a_readiness_probe_sets_and_clears_ready(world: Any, pod: Any) -> None:
    probe = {"exec": {"command": ["ready"]}, "periodSeconds": 5, "failureThreshold": 2, "initialDelaySeconds": 3}
    world.api.create_pod(pod(containers=[{**MAIN, "readinessProbe": probe}]))
    await world.settle()
    assert world.container("web")["ready"] is False
    await world.advance(4)
    assert world.condition("web", "Ready") == "True"
    world.runtime.exec_code["ready"] = 1
    await world.advance(5)
    assert world.condition("web", "Ready") == "True", "one failure of two"
    await world.advance(5)
    assert world.condition("web", "Ready") == "False"
    assert world.container("web")["restartCount"] == 0


async def test_liveness_probe_restarts_the_container(world: Any, pod: Any) -> None:
    probe = {"exec": {"command": ["alive"]}, "periodSeconds": 10, "failureThreshold": 3}
    world.api.create_pod(pod(containers=[{**MAIN, "livenessProbe": probe}]))
    await world.advance(30)
    assert world.runtime.starts("main") == 1
    world.runtime.exec_code["alive"] = 1
    await world.advance(30)
    assert world.runtime.starts("main") == 2
    assert ("main", signal.SIGTERM) in world.runtime.signals
    assert {"Unhealthy", "Killing"} <= set(world.events.reasons())
    assert world.container("web")["restartCount"] == 1


async def test_a_startup_probe_delays_the_others(world: Any, pod: Any) -> None:
    container = {
        **MAIN,
        "startupProbe": {"exec": {"command": ["up"]}, "periodSeconds": 1, "failureThreshold": 100},
        "livenessProbe": {"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 1},
    }
    world.runtime.exec_code |= {"up": 1, "alive": 1}
    world.api.create_pod(pod(containers=[container]))
    await world.advance(20)
    assert ("main", ("alive",)) not in world.runtime.execs
    assert world.container("web")["started"] is False
    world.runtime.exec_code["up"] = 0
    await world.advance(3)
    assert ("main", ("alive",)) in world.runtime.execs
    assert world.container("web")["restartCount"] == 1


async def test_active_deadline(world: Any, pod: Any) -> None:
    world.api.create_pod(pod(activeDeadlineSeconds=60))
    await world.advance(59)
    assert world.status("web")["phase"] == "Running"
    await world.advance(2)
    status = world.status("web")
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143


async def test_a_command_that_cannot_be_executed_backs_off(world: Any, pod: Any) -> None:
    world.runtime.cannot_run.add("main")
    world.api.create_pod(pod(restartPolicy="Never"))
    await world.settle()
    ended = world.container("web")["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"], ended["message"]) == ("ContainerCannotRun", 127, "no such file")
    assert world.status("web")["phase"] == "Failed"


async def test_a_container_without_command_waits_with_the_reason(world: Any, pod: Any) -> None:
    world.api.create_pod(pod(containers=[{"name": "main", "image": "nginx"}]))
    await world.settle()
    waiting = world.container("web")["state"]["waiting"]
    assert waiting["reason"] == "ErrImagePull"
    assert "no command" in waiting["message"]
    await world.advance(60)
    assert world.events.reasons().count("Failed") == 1, "one event, not one per attempt"


async def test_a_container_waits_for_a_missing_config_map(world: Any, pod: Any) -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]
    world.api.create_pod(pod(containers=[{**MAIN, "env": env}]))
    await world.settle()
    waiting = world.container("web")["state"]["waiting"]
    assert waiting == {"reason": "CreateContainerConfigError", "message": 'configmap "cm" not found'}
    path = "/api/v1/namespaces/default/configmaps/cm"
    world.api.objects[path] = {"metadata": {"name": "cm"}, "data": {"k": "v"}}
    await world.advance(11)
    assert world.runtime.configs[-1].env["A"] == "v"
    assert world.status("web")["phase"] == "Running"


@pytest.mark.parametrize(
    ("containers", "field"),
    [
        (
            [{**MAIN, "resources": {"requests": {"cpu": "1x"}}}],
            "spec.containers[0].resources.requests[cpu]",
        ),
        ([{**MAIN, "command": "sleep"}], "spec.containers[0].command"),
        ([], "spec.containers"),
        ([{**MAIN, "resources": "lots"}], "spec.containers[0].resources"),
    ],
    ids=["quantity", "command", "no containers", "resources"],
)
async def test_a_malformed_pod_fails_and_names_the_field(world: Any, pod: Any, containers: Any, field: str) -> None:
    raw = pod()
    raw["spec"]["containers"] = containers
    world.api.create_pod(raw)
    world.api.create_pod(pod("good"))
    await world.settle()
    status = world.status("web")
    assert status["phase"] == "Failed"
    assert status["reason"] == "InvalidPod"
    assert f"pod default/web: {field}:" in status["message"]
    assert ("web", "Warning", "InvalidPod", status["message"]) in world.events.all
    assert world.status("good")["phase"] == "Running"
    world.api.delete_pod("web")
    await world.settle()
    assert world.api.pod("web") is None


async def test_a_pod_that_does_not_fit_is_rejected(world: Any, pod: Any) -> None:
    big = [{**MAIN, "resources": {"requests": {"cpu": "3"}}}]
    world.api.create_pod(pod("one", containers=big))
    world.api.create_pod(pod("two", containers=big))
    await world.settle()
    assert world.status("one")["phase"] == "Running"
    assert world.status("two")["phase"] == "Failed"
    assert world.status("two")["reason"] == "OutOfcpu"
    assert "requested: 3000, used: 3000, capacity: 3500" in world.status("two")["message"]


async def test_a_dead_sandbox_is_created_again(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    first = world.runtime.find("POD").id
    world.runtime.exit("POD", 137)
    await world.settle()
    assert world.runtime.find("POD").running
    assert world.runtime.find("POD").id != first
    assert world.runtime.starts("main") == 1


async def test_a_restarted_kubelet_adopts_running_containers(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    world.runtime.exit("main", 1)
    await world.settle()
    before = world.runtime.find("main")
    await world.restart()
    assert world.runtime.find("main") == before
    assert world.container("web")["restartCount"] == 1
    assert world.container("web")["ready"] is True
    assert world.runtime.starts("main") == 2


async def test_a_pod_deleted_while_the_kubelet_was_down_is_stopped(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    await world.kubelet.stop()
    world.api.delete_pod("web", grace=0)
    await world.restart()
    assert world.runtime.infos == {}
    assert world.kubelet.workers == {}


async def test_a_rejection_survives_a_restart(world: Any, pod: Any) -> None:
    world.api.create_pod(pod(containers=[{**MAIN, "resources": {"requests": {"cpu": "64"}}}]))
    await world.settle()
    await world.restart()
    assert world.status("web")["reason"] == "OutOfcpu"
    assert world.runtime.configs == []


async def test_values_that_koordlet_sets_on_a_running_pod_stay(world: Any, pod: Any) -> None:
    limits = {"limits": {"cpu": "1", "memory": "64Mi"}}
    uid = world.api.create_pod(pod(containers=[{**MAIN, "resources": limits}]))["metadata"]["uid"]
    await world.settle()
    path = f"kubepods/pod{uid}"
    assert world.tree.files[path]["cpu.max"] == "100000 100000"
    world.tree.files[path]["cpu.max"] = "250000 100000"
    world.runtime.exit("main", 1)
    await world.restart()
    assert world.runtime.starts("main") == 2
    assert world.tree.files[path]["cpu.max"] == "250000 100000"


async def test_qos_parents_have_the_sum_of_requests(world: Any, pod: Any) -> None:
    def weight(of: str) -> str:
        return str(world.tree.files[f"kubepods/{of}"]["cpu.weight"])

    assert (weight("burstable"), weight("besteffort")) == ("1", "1")
    for name in ("a", "b"):
        requests = {"requests": {"cpu": "1"}}
        world.api.create_pod(pod(name, containers=[{**MAIN, "resources": requests}], restartPolicy="Never"))
    await world.settle()
    assert weight("burstable") == "79"  # 2048 shares
    await world.restart()
    assert weight("burstable") == "79"
    world.runtime.exit("main", 0)
    await world.settle()
    assert weight("burstable") == "39"
    world.api.delete_pod("a")
    world.api.delete_pod("b")
    await world.settle()
    assert weight("burstable") == "1"


async def test_containers_without_pod_are_removed_after_the_first_list(world: Any, pod: Any) -> None:
    world.api.create_pod(pod())
    await world.settle()
    stray = await world.runtime.run_sandbox(SandboxConfig("e" * 64, "nobody", "kubepods/besteffort/podnobody/x"))
    await world.restart()
    assert stray.id not in world.runtime.infos
    assert world.runtime.find("main").running


async def test_an_ephemeral_container_runs_once_and_does_not_count(world: Any, pod: Any) -> None:
    world.api.create_pod(pod(restartPolicy="Always"))
    await world.settle()
    raw = world.api.pod("web")
    raw["spec"]["ephemeralContainers"] = [
        {"name": "debug", "image": "busybox", "command": ["sh"], "targetContainerName": "main", "stdin": True},
        {"name": "lost", "image": "busybox", "command": ["sh"], "targetContainerName": "none"},
    ]
    world.kubelet.pod_seen(raw)
    await world.settle()
    config = world.runtime.configs[-1]
    assert (config.name, config.target, config.stdin) == ("debug", world.runtime.find("main").id, True)
    debug, lost = world.status("web")["ephemeralContainerStatuses"]
    assert (debug["state"].keys(), debug["ready"]) == ({"running"}, False)
    assert lost["state"]["waiting"]["message"] == "target container none does not run"

    await world.restart()
    assert world.runtime.starts("debug") == 1, "a restarted kubelet finds it"
    world.runtime.exit("debug", 3)
    await world.advance(400)
    assert world.runtime.starts("debug") == 1
    status = world.status("web")
    assert status["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert (status["phase"], status["qosClass"]) == ("Running", "BestEffort")
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"


async def test_a_deleted_pod_takes_its_ephemeral_containers_along(world: Any, pod: Any) -> None:
    raw = pod()
    raw["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "busybox", "command": ["sh"]}]
    world.api.create_pod(raw)
    await world.settle()
    world.api.delete_pod("web")
    await world.settle()
    assert world.runtime.infos == {}
    assert world.api.pod("web") is None
