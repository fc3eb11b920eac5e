"""Two real processes and one lease: the leader is killed during its work, the other completes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

LEASE = "/apis/coordination.k8s.io/v1/namespaces/koordinator-system/leases/koordinator-manager"
NODES = 60
SECONDS = 8


@pytest.fixture
def replica(cluster: Any) -> Iterator[Callable[[str, Path], subprocess.Popen[bytes]]]:
    """`replica("a", kubeconfig)`: a process of the real binary; slow writes, a short lease."""
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, kubeconfig: Path) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "control.manager", f"--kubeconfig={kubeconfig}",
            "--metrics-addr=127.0.0.1:0", "--health-probe-addr=127.0.0.1:0", "--enable-pprof=false",
            "--feature-gates=WebhookFramework=false", "--controllers=nodemetric,nodeslo",
            f"--leader-elect-lease-duration={SECONDS}s", "--leader-elect-renew-deadline=7s",
            "--leader-elect-retry-period=500ms", "--rest-config-qps=20", "--rest-config-burst=1",
        ]  # fmt: skip
        with (cluster.tmp / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "POD_NAME": name})
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


async def test_after_a_killed_leader_nothing_is_written_twice(
    cluster: Any, replica: Callable[[str, Path], subprocess.Popen[bytes]]
) -> None:
    await cluster.nodes(*(f"n{number}" for number in range(NODES)))
    kubeconfig = await cluster.kubeconfig()

    async def holder() -> str:
        lease = await cluster.get(LEASE)
        return str(lease["spec"].get("holderIdentity", "")).partition("_")[0] if lease else ""

    async def made(kind: str = "nodeslos") -> int:
        objects = await cluster.get(f"/apis/slo.koordinator.sh/v1alpha1/{kind}")
        return len(objects["items"])

    async def is_holder(name: str) -> bool:
        return await holder() == name

    first = replica("first", kubeconfig)
    await until(lambda: is_holder("first"))
    second = replica("second", kubeconfig)

    async def some() -> bool:
        return await made() >= 5

    await until(some)
    assert first.poll() is None and await made() < NODES, "it was not killed in the midst of its work"
    first.send_signal(signal.SIGKILL)
    first.wait()
    renewed = (await cluster.get(LEASE))["spec"]["renewTime"]

    await until(lambda: is_holder("second"))
    lease = (await cluster.get(LEASE))["spec"]
    assert lease["leaseTransitions"] == 1
    assert lease["acquireTime"] > renewed

    async def all_made() -> bool:
        return await made() == NODES == await made("nodemetrics")

    await until(all_made)
    second.send_signal(signal.SIGTERM)
    await until(lambda: second.poll() is not None)  # not `wait`: the API server runs in this very loop
    assert second.returncode == 0, (cluster.tmp / "second.log").read_text()
    assert (await cluster.get(LEASE))["spec"]["holderIdentity"] == ""  # released, so the next leader need not wait

    writes = Counter(
        (line["verb"], line["objectRef"]["resource"], line["requestURI"], line["responseStatus"]["code"])
        for line in map(json.loads, cluster.audit.read_text().splitlines())
        if line["objectRef"].get("resource") in ("nodeslos", "nodemetrics")
        and line["verb"] not in ("get", "list", "watch")
    )
    # Nothing was made twice (that would be a 409), nothing that was right was patched, nothing deleted. A request that
    # was under way when the first leader died is 499 (the client disconnected), whether or not it was processed.
    died = sum(count for key, count in writes.items() if key[3] == 499)
    assert {verb for verb, *_ in writes} == {"create"} and died <= 2, writes
    assert {key[3] for key in writes} <= {201, 499}, writes
    made_by_both = sum(count for key, count in writes.items() if key[3] == 201)
    assert 2 * NODES - died <= made_by_both <= 2 * NODES


def test_the_binary_reports_invalid_flags() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "control.manager", "--metrics-adr=:1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "did you mean --metrics-addr" in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "control.manager"], capture_output=True, text=True, check=False,
        env={**os.environ, "WEBHOOK_PORT": "https", "KUBECONFIG": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == 2 and "WEBHOOK_PORT" in done.stderr


async def test_a_lost_lease_ends_the_process(cluster: Any, manager: Any) -> None:
    """Another process holds the lease: nothing more is written, and the lease keeps its new holder."""
    running = await manager("--leader-elect-retry-period=100ms")
    gauge = running.manager.context.internal.get_sample_value
    await until(lambda: gauge("koordinator_manager_is_leader") == 1)
    await cluster.admin.raw(
        "PATCH", LEASE, body={"spec": {"holderIdentity": "other"}}, content_type="application/merge-patch+json"
    )
    await until(running.task.done)
    assert running.task.result() == 1
    assert gauge("koordinator_manager_is_leader") == 0
    assert (await cluster.get(LEASE))["spec"]["holderIdentity"] == "other"
    await cluster.nodes("n1")
    assert await cluster.spec("nodeslos", "n1") is None
