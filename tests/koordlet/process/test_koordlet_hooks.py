"""A runtime proxy's calls to a real koordlet: what a pod gets is in the kernel when the call returns.

One koordlet with a kubelet that shows no pod, then one that fails hooks loudly and whose kubelet never answers. The
proxy is a plain gRPC client.
"""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from koordlet.api.hooks import api_pb2
from koordlet.api.hooks.api_pb2_grpc import RuntimeHookServiceStub
from koordlet.api.nri import api_pb2 as nri
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.cluster import NODE
from tests.koordlet.process.fleet import Fleet, Need, PodSpec, kernel_text
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import Scene
from tests.koordlet.runtimehooks.fake_runtime import Runtime

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MIB = 1 << 20
SPEC = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}}}
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
EXTENDED = json.dumps({"containers": {"c0": {"requests": BATCH, "limits": BATCH}}})
POD = {"cpu.shares": 512, "cpu.cfs_quota_us": 50_000, "memory.limit_in_bytes": 64 * MIB}
NEUTRAL = {"cpu.shares": 2, "cpu.cfs_quota_us": -1, "memory.limit_in_bytes": -1}
LABELS = {"koordinator.sh/qosClass": "BE"}
SPEC_ANNOTATION = "node.koordinator.sh/extended-resource-spec"
GATES = "GPUEnvInject=true,OOMScoreAdj=true"
DEVICES = json.dumps({"gpu": [{"minor": 1, "resources": {}}, {"minor": 0, "resources": {}}]})
SCORED = PodSpec("scored", KubeQOS.BURSTABLE, "LS", (Need(),), {"koordinator.sh/oom-score-adj": "321"})
BATCH_POD = PodSpec("job", KubeQOS.BESTEFFORT, "BE", (Need(),))
PATIENT = "--runtime-hooks-settle-timeout=100s"
CALL_SECONDS = 240.0
"""Deadline of this client; koordlet waits half of it at most, so that a busy machine makes no call late."""


class Proxy:
    """A client of one koordlet's socket."""

    def __init__(self, scene: Scene) -> None:
        self.path = scene.view.state / "koordlet.sock"
        options = [("grpc.use_local_subchannel_pool", 1)]  # no other channel's pause between attempts to connect
        self.channel = grpc.insecure_channel(f"unix:{self.path}", options)
        self.stub = RuntimeHookServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def sandbox(self, pod: Any, annotation: str = EXTENDED, directory: str | None = None) -> Any:
        return self.stub.PreRunPodSandboxHook(self.request(pod, annotation, directory), timeout=CALL_SECONDS)

    def stopped(self, pod: Any) -> Any:
        return self.stub.PostStopPodSandboxHook(self.request(pod), timeout=CALL_SECONDS)

    def container(self, pod: Any, annotation: str = EXTENDED) -> Any:
        request = api_pb2.ContainerResourceHookRequest(
            pod_meta=_meta(pod),
            container_meta={"name": "c0"},
            pod_labels=LABELS,
            pod_annotations={SPEC_ANNOTATION: annotation, "scheduling.koordinator.sh/device-allocated": DEVICES},
            pod_cgroup_parent=f"/{pod.dir}",
            container_envs={"HOME": "/root"},
            container_resources={"cpu_period": 100_000, "cpu_shares": 2, "oom_score_adj": 1000},
        )
        return self.stub.PreCreateContainerHook(request, timeout=CALL_SECONDS)

    @staticmethod
    def request(pod: Any, annotation: str = EXTENDED, directory: str | None = None) -> Any:
        return api_pb2.PodSandboxHookRequest(
            pod_meta=_meta(pod),
            labels=LABELS,
            annotations={SPEC_ANNOTATION: annotation, "else": "kept"},
            cgroup_parent=f"/{pod.dir}" if directory is None else directory,
        )


def _meta(pod: Any) -> dict[str, str]:
    return {"name": pod.spec.name, "namespace": "default", "uid": pod.uid}


def held(scene: Scene, directory: str, values: dict[str, int]) -> dict[str, bool]:
    """Which of the values the kernel holds."""
    settings = {}
    for resource, value in values.items():
        controller, file, text = kernel_text(scene.fleet.tree.v2, resource, value)
        settings[resource] = (scene.fleet.tree.path(controller, directory) / file).read_text().strip() == text
    return settings


@pytest.fixture(scope="module")
def scene(trees: Any, views: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    tree = trees()
    scene = Scene(Fleet(tree), views(tree), tmp_path_factory.mktemp("cluster"), gates=GATES)
    (scene.view.scratch / "hookserver.d").mkdir()
    try:
        scene.open(SPEC, cpus=2, memory_mib=4096)
        scene.start(PATIENT)
        scene.settle()
        yield scene
    finally:
        scene.close()


@pytest.fixture(scope="module")
def proxy(scene: Scene) -> Iterator[Proxy]:
    proxy = Proxy(scene)
    yield proxy
    proxy.channel.close()


def test_koordlet_registers_and_only_root_may_call(scene: Scene, proxy: Proxy) -> None:
    path = scene.view.scratch / "hookserver.d/koordlet.json"
    until(path.exists, "the registration")
    assert json.loads(path.read_text()) == {
        "remote-endpoint": "/var/run/koordlet/koordlet.sock",
        "failure-policy": "Ignore",
        "runtime-hooks": ["PreCreateContainer", "PreRunPodSandbox", "PreUpdateContainerResources"],
    }
    assert stat.S_IMODE(proxy.path.stat().st_mode) == 0o600


def test_an_announced_pod_is_set_up_when_the_call_returns(scene: Scene, proxy: Proxy) -> None:
    (pod,) = scene.fleet.add(BATCH_POD)
    answer = proxy.sandbox(pod)
    assert all(held(scene, pod.dir, POD).values()), held(scene, pod.dir, POD)
    resources = answer.resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes) == tuple(POD.values())
    assert dict(answer.annotations)["else"] == "kept"
    assert (dict(answer.labels), answer.cgroup_parent) == (LABELS, f"/{pod.dir}")
    scene.settle()
    assert all(held(scene, pod.dir, POD).values()), "and stays while the kubelet does not show it"
    proxy.stopped(pod)
    until(lambda: all(held(scene, pod.dir, NEUTRAL).values()), "restoring of a stopped pod's settings")


def test_a_container_is_created_with_its_values_and_otherwise_as_requested(scene: Scene, proxy: Proxy) -> None:
    (pod,) = scene.fleet.add(BATCH_POD)
    answer = proxy.container(pod)
    resources = answer.container_resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes) == tuple(POD.values())
    assert resources.oom_score_adj == 1000
    assert dict(answer.container_envs) == {"HOME": "/root", "NVIDIA_VISIBLE_DEVICES": "1,0"}
    assert all(held(scene, pod.dir, POD).values()), "its sandbox may have started before koordlet"


def test_the_command_of_the_documentation(scene: Scene, proxy: Proxy) -> None:
    (pod,) = scene.fleet.add(BATCH_POD)
    ask = [sys.executable, "-m", "koordlet.runtimehooks", str(proxy.path)]
    request = json_format.MessageToJson(proxy.request(pod))
    done = subprocess.run([*ask, "PreRunPodSandbox"], input=request, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["resources"]["cpu_quota"] == "50000"
    for stage, text, status in (("PreRun", request, 2), ("PreRunPodSandbox", "no", 2)):
        assert subprocess.run([*ask, stage], input=text, capture_output=True, text=True).returncode == status
    proxy.stopped(pod)


def test_a_malformed_annotation_prevents_no_start(scene: Scene, proxy: Proxy) -> None:
    (pod,) = scene.fleet.add(BATCH_POD)
    answer = proxy.sandbox(pod, '{"containers": 1}')
    assert (answer.resources.cpu_quota, answer.resources.cpu_shares) == (0, 0)
    family = scene.koordlet.families()["koordlet_runtime_hook_invoked_duration_milliseconds"]
    failed = {(s.labels["hook"], s.labels["stage"]) for s in family.samples if s.labels["status"] == "failed"}
    assert failed == {("BatchResource", "PreRunPodSandbox")}
    assert "extended-resource-spec" in scene.koordlet.log


def test_a_pod_whose_directory_comes_later_is_set_up_then(scene: Scene, proxy: Proxy) -> None:
    (pod,) = scene.fleet.add(BATCH_POD)
    scene.fleet.remove(pod.uid)
    assert proxy.sandbox(pod).resources.cpu_shares == 512
    scene.fleet.tree.mkdir(pod.dir)
    until(lambda: all(held(scene, pod.dir, POD).values()), "settings of a directory that came late")
    written = scene.koordlet.families()["koordlet_runtime_hook_reconciler_invoked_duration_milliseconds"].samples
    labels = {(s.labels["level"], s.labels["resource_type"], s.labels["status"]) for s in written}
    assert ("pod", "cpu.shares", "succeeded") in labels


def test_nothing_outside_the_kubelets_directories_is_touched(scene: Scene, proxy: Proxy) -> None:
    (pod,) = scene.fleet.add(BATCH_POD)
    with pytest.raises(grpc.RpcError, match="leads upwards"):
        proxy.sandbox(pod, directory="/kubepods/../other")
    scene.fleet.tree.mkdir("elsewhere")
    assert proxy.sandbox(pod, directory="/elsewhere").resources.cpu_shares == 512
    assert held(scene, "elsewhere", {"cpu.cfs_quota_us": -1}) == {"cpu.cfs_quota_us": True}


def test_many_calls_at_once_are_all_answered(scene: Scene, proxy: Proxy) -> None:
    pods = scene.fleet.add(*[PodSpec(f"many-{n}", KubeQOS.BESTEFFORT, "BE", (Need(),)) for n in range(20)])
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(proxy.sandbox, pods * 10))
    assert {answer.resources.cpu_quota for answer in answers} == {50_000}
    assert [pod.dir for pod in pods if not all(held(scene, pod.dir, POD).values())] == []


def _oom_score(scene: Scene, directory: str) -> int:
    (pid,) = (scene.fleet.tree.path("memory", directory) / "cgroup.procs").read_text().split()
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_a_running_containers_oom_score_is_set_but_not_its_sandboxs(scene: Scene) -> None:
    (pod,) = scene.fleet.add(SCORED)
    directory = pod.container_dirs[0]
    before = _oom_score(scene, directory)
    scene.kubelet.pods = [pod.manifest(NODE)]
    until(lambda: _oom_score(scene, directory) == 321, "the score")
    assert _oom_score(scene, pod.sandbox_dir) == before
    family = "koordlet_container_oom_score_adj"
    until(lambda: scene.koordlet.values(family, pod_name="scored") == [321.0], "its metric")


def test_koordlet_stops_while_calls_run_and_its_registration_stays(scene: Scene, proxy: Proxy) -> None:
    """Each call is answered or refused, none hangs; the settings of announced pods are restored."""
    (pod,) = scene.fleet.add(BATCH_POD)
    answered, refused = threading.Event(), threading.Event()
    odd: list[str] = []

    def call() -> None:
        while not refused.is_set():
            try:
                proxy.sandbox(pod)
                answered.set()
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    odd.append(str(error))
                refused.set()

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(answered.is_set, "a call answered")
    status = scene.stop()
    for thread in threads:
        thread.join()
    assert (status, odd) == (0, [])
    assert not proxy.path.exists()
    assert (scene.view.scratch / "hookserver.d/koordlet.json").exists()
    assert all(held(scene, pod.dir, NEUTRAL).values()), held(scene, pod.dir, NEUTRAL)


# --- the last: another koordlet over the same node


class Containerd:
    """The runtime's side of NRI in a thread of its own, for as long as the block lasts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Containerd:
        self._thread.start()
        self._runtime = self._run(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._runtime.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connected(self) -> bool:
        return bool(self._runtime.plugins)

    def call(self, method: str, request: Any) -> bytes:
        answer: bytes = self._run(self._runtime.plugins[-1].call(method, request, CALL_SECONDS))
        return answer

    async def _begin(self) -> Runtime:
        return await Runtime(self.path).__aenter__()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)


@pytest.fixture(scope="module")
def runtime(scene: Scene) -> Iterator[Containerd]:
    with Containerd(scene.view.scratch / "nri.sock") as containerd:
        yield containerd


@pytest.fixture(scope="module")
def strict(scene: Scene, runtime: Containerd) -> Iterator[Proxy]:
    scene.koordlet.kill()
    scene.kubelet.silent = True
    flags = ("--runtime-hooks-plugin-failure-policy=Fail", "--runtime-hooks-disable-stages=PreRunPodSandbox")
    scene.start(PATIENT, f"--runtime-hooks-nri-socket-path={runtime.path}", *flags)
    until((scene.view.state / "koordlet.sock").exists, "its socket")
    until(lambda: runtime.connected, "it to register with the runtime")
    proxy = Proxy(scene)
    yield proxy
    proxy.channel.close()


def test_with_policy_fail_the_error_names_pod_and_annotation(strict: Proxy, scene: Scene) -> None:
    (pod,) = scene.fleet.add(BATCH_POD)
    with pytest.raises(grpc.RpcError, match=r"default/job.*extended-resource-spec"):
        strict.sandbox(pod, "{")
    with pytest.raises(grpc.RpcError, match=r"default/job, container c0.*extended-resource-spec"):
        strict.container(pod, '{"containers": {"c0": {"limits": {"kubernetes.io/batch-cpu": "many"}}}}')


def test_koordlet_answers_before_the_kubelet_did(strict: Proxy, scene: Scene) -> None:
    """The response needs no list of pods; what must be written follows once pods are known."""
    (pod,) = scene.fleet.add(BATCH_POD)
    assert strict.sandbox(pod).resources.cpu_quota == 50_000
    scene.kubelet.silent = False
    until(lambda: all(held(scene, pod.dir, POD).values()), "settings once the kubelet answered")


def test_a_runtime_that_speaks_nri_is_answered_too(strict: Proxy, scene: Scene, runtime: Containerd) -> None:
    """Pod settings are in the kernel when RunPodSandbox returns, a container's in the adjustment."""
    (pod,) = scene.fleet.add(BATCH_POD)
    sandbox = nri.PodSandbox(
        name="job", namespace="default", uid=pod.uid, labels=LABELS, annotations={SPEC_ANNOTATION: EXTENDED},
        linux={"cgroup_parent": f"/{pod.dir}"},
    )  # fmt: skip
    runtime.call("RunPodSandbox", nri.PodRequest(pod=sandbox))
    assert all(held(scene, pod.dir, POD).values()), held(scene, pod.dir, POD)
    request = nri.CreateContainerRequest(pod=sandbox, container={"id": "abc", "name": "c0"})
    adjust = nri.CreateContainerResponse.FromString(runtime.call("CreateContainer", request)).adjust
    resources = adjust.linux.resources
    assert (resources.cpu.shares.value, resources.cpu.quota.value, resources.memory.limit.value) == tuple(POD.values())
    sandbox.annotations[SPEC_ANNOTATION] = "{"
    with pytest.raises(RuntimeError, match="default/job, container c0"):
        runtime.call("CreateContainer", nri.CreateContainerRequest(pod=sandbox, container={"id": "abc", "name": "c0"}))
    up = {s.labels["protocol"]: s.value for s in scene.koordlet.families()["koordlet_runtime_hook_protocol_up"].samples}
    assert up == {"grpc": 1.0, "nri": 1.0}


def test_a_disabled_stage_is_not_registered(strict: Proxy, scene: Scene) -> None:
    path = scene.view.scratch / "hookserver.d/koordlet.json"
    until(lambda: "PreRunPodSandbox" not in path.read_text(), "the new registration")
    assert json.loads(path.read_text())["runtime-hooks"] == ["PreCreateContainer", "PreUpdateContainerResources"]
