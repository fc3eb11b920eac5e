"""CPUs, memory and devices of an emulated machine, from sysfs to containers of a real containerd, and their release.

koordlet reads the tree of `emulatedmachine` and NVML's C ABI (tests/nvidia.c), reports NodeResourceTopology and Device,
and sets up containers as an NRI plugin. API server, manager, scheduler and the stand-in kubelet are those of `koordctl
up`; the containerd is one with NRI. The kernel has the last word on cpusets, device nodes and mounts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from control.ctl.node.parts import PARTS, Layout
from control.ctl.node.state import load
from koordlet.api.cpus import parse_cpus
from tests.e2e import emulatedmachine
from tests.e2e.conftest import Cluster, koordctl, prepare
from tests.e2e.emulatedmachine import EmulatedMachine, function_address, gpu_address, nic_address
from tests.nvidia import build
from tests.runtimes.daemons import running
from tests.runtimes.nri import NRIContainerd

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.kubectl, pytest.mark.runtime]
Eventually = Callable[..., Any]
SCHEDULING = "scheduling.koordinator.sh"
GATES = "Accelerators=true,RDMADevices=true,GPUEnvInject=true,RDMADeviceInject=true,HamiCoreVGPUMonitor=true"
START = (
    "import json, sys; from pathlib import Path; from control.ctl.node.supervisor import Supervisor; "
    "Supervisor(Path(sys.argv[1])).start(sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))"
)
"""A process of its own, so that the parts are no children of the tests. `koordctl down` ends them."""
LOOK = (
    "while :; do echo look $NVIDIA_VISIBLE_DEVICES /$LD_PRELOAD /$CUDA_DEVICE_SM_LIMIT; ls -l /dev/infiniband; "
    "[ -z $LD_PRELOAD ] || cat $LD_PRELOAD; sed -n s/Cpus_allowed_list:/cpus/p /proc/self/status; echo end; "
    "sleep 1; done"
)
ALIGNED = {
    f"{SCHEDULING}/numa-topology-spec": json.dumps({"numaTopologyPolicy": "SingleNUMANode"}),
    f"{SCHEDULING}/device-joint-allocate": json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}),
    f"{SCHEDULING}/device-allocate-hint": json.dumps({"rdma": {"vfSelector": {}}}),
}
TRAINING = {"cpu": "1", "koordinator.sh/gpu": "200", "koordinator.sh/rdma": "10"}


class Node:
    """A cluster with one node, whose machine is emulated for koordlet."""

    def __init__(self, base: Path, containerd: NRIContainerd) -> None:
        self.state = base / "state"
        self.machine = EmulatedMachine(base / "machine")
        self.machine.sys.parent.mkdir()
        self.machine.build()
        self._library = build(base)
        self._containerd = containerd
        self.cluster = Cluster(self.state / "apiserver/admin.kubeconfig")
        self.name = ""

    def up(self) -> None:
        ports = ("", "kubelet-", "koordlet-", "manager-", "webhook-", "scheduler-", "runtimeproxy-")
        done = koordctl(
            "up", f"--state-dir={self.state}", "--report-interval=3", "--aggregate-duration=60", "--probes=off",
            "--without=kubelet,koordlet", f"--bpf-pin-dir=/sys/fs/bpf/koord-e2e-{os.getpid()}",
            *(f"--{name}port=0" for name in ports),
        )  # fmt: skip
        assert done.returncode == 0, f"koordctl up: {done.stdout}{done.stderr}"
        runtime = ("--container-runtime-endpoint", f"unix://{self._containerd.socket}")
        self._start("kubelet", dict([runtime]), {})
        finds = {"LD_LIBRARY_PATH": str(self._library.parent), **self.machine.nvidia.environment}
        hooks = {"--runtime-hooks-nri-socket-path": str(self._containerd.nri), "--feature-gates": GATES}
        self._start("koordlet", hooks, finds, *self.machine.flags)
        prepare(self.cluster)

    def down(self) -> None:
        done = koordctl("down", f"--state-dir={self.state}", "--purge")
        assert done.returncode == 0, f"koordctl down did not remove everything: {done.stdout}{done.stderr}"

    def log(self, part: str) -> str:
        return (self.state / f"logs/{part}.log").read_text()

    def _start(self, name: str, flags: dict[str, str], environment: dict[str, str], *more: str) -> None:
        """As `koordctl up` would, with other values of some flags."""
        settings, layout = load(self.state).settings, Layout(self.state)
        assert settings is not None
        self.name = settings.node_name
        [part] = [part for part in PARTS if part.name == name]
        part.before(layout, settings)
        kept = [word for word in part.argv(layout, settings) if word.partition("=")[0] not in flags]
        argv = [*kept, *(f"{flag}={value}" for flag, value in flags.items()), *more]
        environ = {**part.environ(layout, settings), **environment}
        command = [sys.executable, "-c", START, str(self.state), name, json.dumps(argv), json.dumps(environ)]
        subprocess.run(command, check=True, timeout=60)

    def pod(self, name: str, qos: str, amounts: dict[str, str], annotations: dict[str, str], **labels: str) -> None:
        resources = {"memory": "32Mi", **amounts}
        container = {
            "name": "main", "image": self.cluster.image, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", LOOK], "resources": {"requests": resources, "limits": resources},
        }  # fmt: skip
        metadata = {
            "name": name,
            "labels": {"app": "emulated", "koordinator.sh/qosClass": qos, **labels},
            "annotations": annotations,
        }
        spec = {
            "schedulerName": "koord-scheduler", "priorityClassName": "koord-prod", "containers": [container],
            "terminationGracePeriodSeconds": 1,
        }  # fmt: skip
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def ready(self, name: str) -> None:
        self.cluster.run("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=180s")

    def annotation(self, name: str, key: str) -> Any:
        return json.loads(self.cluster.get("pod", name)["metadata"]["annotations"][f"{SCHEDULING}/{key}"])

    def look(self, name: str) -> list[str]:
        """What the container saw last."""
        report = self.cluster.run("logs", name).stdout.rpartition("end\n")[0].rpartition("look ")[2]
        return report.splitlines()

    def cpuset(self, name: str) -> set[int]:
        """Of the container's cgroup."""
        pod = self.cluster.get("pod", name)
        container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
        [path] = Path("/sys/fs/cgroup").glob(f"**/*pod{pod['metadata']['uid']}/{container}/cpuset.cpus")
        return set(parse_cpus(path.read_text().strip()))

    def delete(self, *names: str) -> None:
        self.cluster.run("delete", "pod", *names, "--wait", "--timeout=180s")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A short path, because of sockets."""
    with tempfile.TemporaryDirectory(prefix="koordemu-") as folder, running(NRIContainerd()) as containerd:
        machine = Node(Path(folder), containerd)
        try:
            machine.up()
            yield machine
        finally:
            machine.down()


@pytest.fixture(scope="module")
def reported(node: Node) -> dict[str, Any]:
    """The annotations of NodeResourceTopology after the node has reserved the CPUs that this machine may lack."""
    cluster, reservation = (
        node.cluster,
        json.dumps({"reservedCPUs": emulatedmachine.RESERVED, "applyPolicy": "ReservedCPUsOnly"}),
    )
    _until(lambda: not cluster.run("get", "node", node.name, ok=False).returncode, "the node is registered")
    cluster.run("annotate", "node", node.name, f"node.koordinator.sh/reservation={reservation}")
    cluster.run("label", "node", node.name, "koordinator.sh/gpu-isolation-provider=HAMi-core")
    cluster.run("wait", "--for=condition=Ready", "node", node.name, "--timeout=120s")

    def topology() -> dict[str, Any] | None:
        if cluster.run("get", "node-res-topo", node.name, ok=False).returncode:
            return None
        read: dict[str, Any] = cluster.get("node-res-topo", node.name)
        known = read["metadata"]["annotations"].get("node.koordinator.sh/reservation", "{}")
        return read if json.loads(known).get("reservedCPUs") == emulatedmachine.RESERVED else None

    def published() -> bool:
        allocatable = cluster.get("node", node.name)["status"]["allocatable"]
        return (allocatable.get("koordinator.sh/gpu"), allocatable.get("koordinator.sh/rdma")) == ("800", "400")

    read = _until(topology, "koordlet reports the reserved CPUs", 120)
    _until(published, "koord-manager publishes the devices", 180)
    _until(lambda: "NRI plugin configured" in node.log("koordlet"), "koordlet is a plugin of containerd")
    result: dict[str, Any] = read
    return result


def _until(done: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (result := done()):
        assert time.monotonic() < end, f"did not come within {seconds:.0f} s: {what}"
        time.sleep(0.5)
    return result


def test_koordlet_reports_the_emulated_machine(node: Node, reported: dict[str, Any]) -> None:
    detail = json.loads(reported["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"])["detail"]
    by_node: dict[int, set[int]] = {}
    for cpu in detail:
        by_node.setdefault(cpu["node"], set()).add(cpu["id"])
        assert cpu["socket"] == cpu["node"] // 2
    assert by_node == {number: set(cpus) for number, cpus in emulatedmachine.CPUS_OF_NODE.items()}
    zones = {
        zone["name"]: {
            resource["name"]: resource["capacity"]
            for resource in zone["resources"]
            if resource["name"] in ("cpu", "memory")
        }
        for zone in reported["zones"]
    }
    assert zones == {f"node-{number}": {"cpu": "4", "memory": "8Gi"} for number in range(4)}
    devices = node.cluster.get("devices.scheduling.koordinator.sh", node.name)["spec"]["devices"]
    places = {(d["type"], d["minor"]): (d["id"], d["topology"]["nodeID"], d["topology"]["pcieID"]) for d in devices}
    gpus = {("gpu", m): (f"GPU-{m}", m // 2, f"pci{gpu_address(m)[:7]}") for m in range(8)}
    nics = {("rdma", m): (nic_address(m), m, f"pci{nic_address(m)[:7]}") for m in range(4)}
    assert places == gpus | nics
    functions = {
        d["minor"]: [vf["busID"] for g in d["vfGroups"] for vf in g["vfs"]] for d in devices if "vfGroups" in d
    }
    assert functions == {number: [function_address(number)] for number in range(4)}


def test_pods_get_cpus_memory_and_devices_of_one_numa_node(
    node: Node, reported: dict[str, Any], eventually: Eventually
) -> None:
    """The zones with a CPU of this machine are 1 and 3; the GPUs of the others stay free, so the CPUs decide."""

    def gets(name: str, zone: int) -> None:
        cpu = emulatedmachine.REAL[zone]
        status = node.annotation(name, "resource-status")
        assert status["cpuset"] == str(cpu)
        assert [share["node"] for share in status["numaNodeResources"]] == [zone]
        devices = node.annotation(name, "device-allocated")
        assert [gpu["id"] for gpu in devices["gpu"]] == [f"GPU-{2 * zone}", f"GPU-{2 * zone + 1}"]
        [nic] = devices["rdma"]
        assert (nic["minor"], nic["extension"]["vfs"][0]["busID"]) == (zone, function_address(zone))
        assert node.cpuset(name) == {cpu}, "the cgroup"
        eventually(lambda: node.look(name)[-1].split() == ["cpus", str(cpu)])
        report = node.look(name)
        assert report[0] == f"{2 * zone},{2 * zone + 1} / /", "the environment"
        nodes = {line.split()[-1]: line.split()[4:6] for line in report if re.match("c.* 231, ", line)}
        verbs = emulatedmachine.UVERBS_MINOR + 4 + zone
        assert nodes == {"rdma_cm": ["231,", "191"], f"uverbs{4 + zone}": ["231,", str(verbs)]}, "the virtual function"

    node.pod("first", "LSR", TRAINING, ALIGNED)
    node.ready("first")
    node.pod("second", "LSR", TRAINING, ALIGNED)
    node.ready("second")
    gets("first", 1)
    gets("second", 3)
    drawn = _koordctl(node, "node", node.name)
    assert re.search(r"PCIe \S+: gpu 2 \w, gpu 3 \w, rdma 1 \w 90% left", drawn), drawn
    assert re.search(r"PCIe \S+: gpu 0 free, gpu 1 free, rdma 0 free", drawn), drawn

    node.delete("first")
    node.pod("third", "LSR", TRAINING, ALIGNED)
    node.ready("third")
    gets("third", 1)
    node.delete("second", "third")


def test_a_pod_that_no_numa_node_can_serve_waits(node: Node, reported: dict[str, Any], eventually: Eventually) -> None:
    node.pod("wide", "LSR", {**TRAINING, "cpu": "2"}, ALIGNED)

    def message() -> str:
        conditions = node.cluster.get("pod", "wide")["status"].get("conditions", [])
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")

    eventually(lambda: "Unaligned NUMA Hint cause cpu prefer [1010]" in message(), 60)
    explained = _koordctl(node, "explain", "pod", "wide", f"--namespace={node.cluster.namespace}", "--only=placement")
    assert "SingleNUMANode" in explained, explained
    node.delete("wide")


def test_a_shared_gpu_is_limited_by_a_library_in_the_container(
    node: Node, reported: dict[str, Any], eventually: Eventually
) -> None:
    """HAMi-core: its variables, and the library as a mount that the container reads."""
    share = {"cpu": "100m", "koordinator.sh/gpu": "30"}
    node.pod("shared", "LS", share, {}, **{"koordinator.sh/gpu-isolation-provider": "HAMi-core"})
    node.ready("shared")
    [gpu] = node.annotation("shared", "device-allocated")["gpu"]
    library = node.machine.library
    eventually(lambda: node.look("shared")[0] == f"{gpu['minor']} /{library} /30")
    assert any(emulatedmachine.LIBRARY in line for line in node.look("shared"))
    node.delete("shared")


def _koordctl(node: Node, *command: str) -> str:
    settings = load(node.state).settings
    assert settings is not None
    flags = (f"--kubeconfig={node.cluster.kubeconfig}", f"--scheduler-url={settings.scheduler_url}")
    done = koordctl(*command, *flags)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout
