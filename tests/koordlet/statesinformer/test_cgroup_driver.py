"""Which directory names a pod gets while the cgroup tree does not tell the kubelet's driver (spec 02 §2.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koordlet.api.core import DaemonEndpoint, Node, NodeDaemonEndpoints, NodeStatus, Pod
from koordlet.api.meta import ObjectMeta
from koordlet.kube import Client, ClientConfig
from koordlet.statesinformer.pods.kubelet import KubeletError
from koordlet.statesinformer.states import KubeStates
from koordlet.system.cgroup.naming import CgroupDriver, NamingError

SYSTEMD, CGROUPFS = CgroupDriver.SYSTEMD, CgroupDriver.CGROUPFS
DIRS = {SYSTEMD: "kubepods.slice/kubepods-podu1.slice", CGROUPFS: "kubepods/podu1"}
PORT = 10250


class Kubelet:
    """Has one Guaranteed pod; `answer` is its configuration, or why there is none."""

    def __init__(self, answer: dict[str, Any] | KubeletError) -> None:
        self.answer, self.asked = answer, 0

    async def config(self) -> dict[str, Any]:
        self.asked += 1
        if isinstance(self.answer, KubeletError):
            raise self.answer
        return self.answer

    async def pods(self) -> list[Pod]:
        pod = Pod(metadata=ObjectMeta(name="a", namespace="default", uid="u1"))
        pod.status.qos_class = "Guaranteed"
        return [pod]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(ClientConfig("http://127.0.0.1:1"))
    yield client
    await client.close()


def process(driver: CgroupDriver | None) -> Callable[[int], CgroupDriver]:
    def told(port: int) -> CgroupDriver:
        assert port == PORT
        if driver is None:
            raise NamingError(f"no process listens on the kubelet's port {port}")
        return driver

    return told


NO_CONFIG = KubeletError("kubelet /configz: HTTP 404")


@pytest.mark.parametrize(
    ("answer", "ask", "reported", "expected"),
    [
        pytest.param({"cgroupDriver": "cgroupfs"}, True, SYSTEMD, CGROUPFS, id="its-configuration"),
        pytest.param({"cgroupDriver": "cgroupfs"}, False, SYSTEMD, SYSTEMD, id="it-must-not-be-asked"),
        pytest.param(NO_CONFIG, True, CGROUPFS, CGROUPFS, id="its-process-where-it-does-not-answer"),
        pytest.param({"cgroupDriver": "odd"}, True, CGROUPFS, CGROUPFS, id="its-process-for-an-unknown-word"),
        pytest.param(NO_CONFIG, True, None, SYSTEMD, id="unknown-everywhere"),
    ],
)
async def test_driver(
    client: Client, answer: Any, ask: bool, reported: CgroupDriver | None, expected: CgroupDriver
) -> None:
    kubelet = Kubelet(answer)
    states = KubeStates(client, "n1", tree_driver=lambda: None, process_driver=process(reported), query_config=ask)
    endpoints = NodeDaemonEndpoints(kubelet_endpoint=DaemonEndpoint(port=PORT))
    states.node.store.put("n1", Node(status=NodeStatus(daemon_endpoints=endpoints)))
    states.node.synced.set()
    states.connect(kubelet)  # type: ignore[arg-type]
    await states.sync_pods()
    assert states.workloads.pods["u1"].cgroup_dir == DIRS[expected]
    assert states.driver is expected
    assert kubelet.asked == ask


async def test_an_unknown_driver_is_queried_again_and_the_cgroup_tree_has_precedence(client: Client) -> None:
    drivers: list[CgroupDriver | None] = [None]
    kubelet = Kubelet(NO_CONFIG)
    states = KubeStates(client, "n1", tree_driver=lambda: drivers[0])
    states.node.synced.set()
    states.connect(kubelet)  # type: ignore[arg-type]
    for queries in (1, 2):
        await states.sync_pods()
        assert (kubelet.asked, states.driver) == (queries, SYSTEMD)
    drivers[0] = CGROUPFS
    await states.sync_pods()
    assert (kubelet.asked, states.driver) == (2, CGROUPFS)
    assert states.workloads.pods["u1"].cgroup_dir == DIRS[CGROUPFS]
