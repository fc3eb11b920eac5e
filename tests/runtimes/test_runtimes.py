"""The runtimes that other tests use: real containers, the requested cgroups, nothing left behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from control.standalone.containerd import archive
from control.standalone.containerd.images import write_images
from control.standalone.containerd.wipe import mounts, shims, wipe
from control.standalone.kubelet.runtimes.criclient import CriClient, CriError
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from tests.runtimes.daemons import Containerd, Dockerd
from tests.runtimes.pods import container_config, sandbox_config

pytestmark = pytest.mark.runtime


@pytest.mark.parametrize("slices", [False, True], ids=["cgroupfs", "slices"])
async def test_a_container_runs_in_the_requested_cgroup(containerd: Containerd, cri: CriClient, slices: bool) -> None:
    parent = containerd.cgroup_parent("pod", slices=slices)
    sandbox = sandbox_config(parent, name="web")
    sandbox_id = await cri.run_pod_sandbox(sandbox)
    resources = LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512)
    config = container_config(resources=resources, envs=[("GREETING", "hello")])
    container = await cri.create_container(sandbox_id, config, sandbox)
    await cri.start_container(container)

    output = await cri.exec_sync(container, ["sh", "-c", "echo $GREETING; cat /proc/1/cgroup"], 10)
    leaf = f"cri-containerd-{container}.scope" if slices else container
    assert output.exit_code == 0, output.stderr
    greeting, *groups = output.stdout.decode().splitlines()
    assert greeting == "hello"
    assert {line.split(":")[2] for line in groups} == {f"{parent}/{leaf}"}
    if containerd.tree.version == 1:
        directory = containerd.tree.dir("cpu", f"{parent[1:]}/{leaf}")
        assert (directory / "cpu.cfs_quota_us").read_text() == "50000\n"
        assert (directory / "cpu.shares").read_text() == "512\n"
    status = (await cri.container_status(container)).status
    assert status.resources.linux.cpu_quota == 50_000


async def test_containers_outlive_containerd_and_are_wiped_without_it(
    new_containerd: Callable[..., Containerd],
) -> None:
    daemon = new_containerd()
    sandbox = sandbox_config(daemon.cgroup_parent())
    async with CriClient(str(daemon.socket)) as client:
        sandbox_id = await client.run_pod_sandbox(sandbox)
        container = await client.create_container(sandbox_id, container_config(), sandbox)
        await client.start_container(container)
    daemon.kill()
    daemon.start()
    async with CriClient(str(daemon.socket)) as client:
        assert [listed_container.id for listed_container in await client.list_containers()] == [container]
        assert (await client.exec_sync(container, ["true"], 10)).exit_code == 0
    daemon.stop(signal.SIGKILL)
    assert shims(daemon.folder)
    assert mounts(daemon.folder)
    wipe(daemon.folder, daemon.tree)
    assert not shims(daemon.folder)
    assert not mounts(daemon.folder)


async def test_errors_carry_code_and_words(cri: CriClient) -> None:
    with pytest.raises(CriError, match="not found") as caught:
        await cri.container_status("absent")
    assert caught.value.absent
    assert await cri.image("localhost/absent:1") is None
    assert await cri.image("busybox") is not None


def test_dockerd_runs_a_container_below_the_parent(dockerd: Dockerd) -> None:
    parent = dockerd.cgroup_parent()
    dockerd.docker("run", "--detach", "--name=one", "--network=none", f"--cgroup-parent={parent}", "--cpu-shares=77",
                   "busybox", "sleep", "1000")  # fmt: skip
    container = dockerd.inspect("one")
    assert container["State"]["Running"]
    assert dockerd.tree.pids(f"{parent[1:]}/{container['Id']}") == {container["State"]["Pid"]}


def test_an_archive_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    write_images(first)
    write_images(second)
    assert first.read_bytes() == second.read_bytes()


def test_a_busybox_that_needs_libraries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a static program"):
        archive.busybox_layer(Path("/bin/ls"))
