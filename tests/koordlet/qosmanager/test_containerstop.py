"""Evictions without the API server: containers stopped through CRI (spec 03 §3.1)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from control.standalone.kubelet.runtimes.criclient import CriClient
from koordlet.api.cri import api_pb2 as pb
from koordlet.audit import NullAuditor
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.containerstop import SOCKETS, ContainerStopper
from koordlet.qosmanager.engine.eviction import EvictionTask
from koordlet.qosmanager.engine.evictor import EvictionRefused, PodEvictor, VictimGone
from koordlet.qosmanager.engine.view import PodView
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta
from tests.runtimes.daemons import Containerd
from tests.runtimes.pods import container_config, sandbox_config


class NoEvents:
    def warning(self, pod: object, reason: str, message: str) -> None:
        raise AssertionError("these pods are known without their object")


def victim(*containers: ContainerMeta) -> PodMeta:
    return PodMeta("uid", "batch", "default", "BE", "koord-batch", "besteffort", "pod", containers)


def container(identifier: str, name: str = "c", *, running: bool = True) -> ContainerMeta:
    return ContainerMeta(f"containerd://{identifier}", name, f"pod/{name}", running)


@pytest.mark.parametrize("names", [SOCKETS, SOCKETS[1:], SOCKETS[2:], SOCKETS[-1:]])
def test_the_first_socket_that_exists_is_used(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    stopper = ContainerStopper(tmp_path)
    assert stopper.socket() == tmp_path / names[0]
    assert stopper.problem == ""


async def test_without_a_runtime_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "containerd.sock").write_text("no socket")
    with pytest.raises(EvictionRefused, match="set --containerd-endpoint"):
        await ContainerStopper(tmp_path).evict(victim(container("a")))


async def test_a_runtime_that_does_not_listen_refuses(tmp_path: Path) -> None:
    path = tmp_path / "own.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(EvictionRefused, match=r"own\.sock: "):
        await ContainerStopper(tmp_path, f"unix://{path}").evict(victim(container("a")))


async def test_a_pod_without_running_containers_is_gone(tmp_path: Path) -> None:
    with pytest.raises(VictimGone):
        await ContainerStopper(tmp_path).evict(victim(container("a", running=False)))


@pytest.mark.runtime
async def test_all_containers_of_the_victim_are_killed_and_no_other(containerd: Containerd, cri: CriClient) -> None:
    stopped = [await _run(containerd, cri, "victim", name) for name in ("one", "two")]
    (kept,) = [await _run(containerd, cri, "neighbour", "one")]
    pod = victim(*(container(identifier, f"c{number}") for number, identifier in enumerate(stopped)))
    evictor = PodEvictor(
        ContainerStopper(Path("unused"), str(containerd.socket)),
        NoEvents(),  # type: ignore[arg-type]
        NullAuditor(),
        Registries(),
        lambda: 1000.0,
    )
    view = PodView.of(pod, 100, 100)
    task = EvictionTask("BEMemoryEvict", "podUsed", {"memory": 50}, (view,), {"uid": {"memory": 100}})
    assert await evictor.work([task]) == 1
    states = [(await cri.container_status(each)).status.state for each in (*stopped, kept)]
    assert states == [pb.CONTAINER_EXITED, pb.CONTAINER_EXITED, pb.CONTAINER_RUNNING]
    assert await evictor.work([task]) == 1, "stopping again does no harm; a restarted container is a victim again"


@pytest.mark.runtime
async def test_a_container_that_the_runtime_does_not_know_is_no_failure(containerd: Containerd) -> None:
    stopper = ContainerStopper(Path("unused"), str(containerd.socket))
    await stopper.evict(victim(container("0" * 64)))


async def _run(daemon: Containerd, cri: CriClient, pod: str, name: str) -> str:
    """A container that ignores SIGTERM; its id."""
    config = sandbox_config(
        f"{daemon.cgroup_parent()}/kubepods/besteffort/pod{pod}{name}", name=pod + name, uid=pod + name
    )
    sandbox = await cri.run_pod_sandbox(config)
    command = container_config("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done", name=name)
    identifier = await cri.create_container(sandbox, command, config)
    await cri.start_container(identifier)
    return identifier
