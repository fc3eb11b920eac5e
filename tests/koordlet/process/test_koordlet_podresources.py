"""koordlet with gate PodResourcesProxy: a consumer of the kubelet's pod-resources API sees what the scheduler gave.

The kubelet's own socket comes after koordlet's start; the kubelet's /pods shows the pod only when it is asked for it.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordlet.api.podresources import SERVICE
from koordlet.api.podresources.api_pb2 import ListPodResourcesResponse
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.fleet import Fleet, Need, PodSpec
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import Scene

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

ALLOCATED = json.dumps({"gpu": [{"minor": 0, "id": "GPU-a", "resources": {}}], "fpga": [{"minor": 0, "id": "f"}]})
TRAIN = PodSpec("train", KubeQOS.BURSTABLE, "LS", (Need(),), {"scheduling.koordinator.sh/device-allocated": ALLOCATED})
PATIENCE = 120.0


@pytest.fixture(scope="module")
def scene(trees: Any, views: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    tree = trees()
    scene = Scene(Fleet(tree), views(tree), tmp_path_factory.mktemp("cluster"), gates="PodResourcesProxy=true")
    scratch = scene.view.scratch
    try:
        scene.open({}, cpus=2, memory_mib=4096)
        scene.start(
            f"--pod-resources-proxy-path={scratch / 'own/pod-resources'}",
            f"--var-lib-kubelet-dir={scratch / 'kubelet'}",
            "--kubelet-sync-interval=1h",
        )  # fmt: skip
        yield scene
    finally:
        scene.close()


@pytest.fixture
def kubelet(scene: Scene) -> Iterator[grpc.Server]:
    """What is to listen at the kubelet's socket; it knows one pod."""
    (pod,) = scene.fleet.add(TRAIN)
    pod_entry = {"name": pod.spec.name, "namespace": "default", "containers": [{"name": "c0"}]}
    answer = ListPodResourcesResponse(pod_resources=[pod_entry]).SerializeToString()
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"List": handler}),))
    yield server
    server.stop(None).wait()


def test_devices_of_a_pod_that_just_came(scene: Scene, kubelet: grpc.Server) -> None:
    path: Path = scene.view.scratch / "own/pod-resources/kubelet.sock"
    until(path.exists, "the socket")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(f"/{SERVICE}/List")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        place = scene.view.scratch / "kubelet/pod-resources/kubelet.sock"
        place.parent.mkdir(parents=True)
        kubelet.add_insecure_port(f"unix:{place}")
        kubelet.start()
        scene.publish()
        (pod_entry,) = ListPodResourcesResponse.FromString(call(b"", timeout=PATIENCE)).pod_resources
        assert [(device.resource_name, list(device.device_ids)) for device in pod_entry.containers[0].devices] == [
            ("nvidia.com/gpu", ["GPU-a"])
        ]
    families = scene.koordlet.families()
    calls = {s.labels["code"]: s.value for s in families["koordlet_pod_resources_calls"].samples if s.value}
    assert calls == {"UNAVAILABLE": 1, "OK": 1}
    assert [s.value for s in families["koordlet_pod_resources_proxy_up"].samples] == [1]
    assert scene.stop() == 0
    assert not path.exists()
