"""This checkout on a real Kubernetes, from the shipped manifests: every component starts and reports, koordlet without
`privileged`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.standalone.containerd.config import may_protect
from devicedaemon.confinement import KEPT, numbers
from koordlet.system.capabilities import CAPABILITIES
from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get
from tests.kubernetes.node import ROOT
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes


def test_every_component_is_ready_and_was_not_restarted(installed: Kubernetes) -> None:
    pods = get(installed, "pods", "-n", NAMESPACE)["items"]
    assert len(pods) >= len(WORKLOADS)
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
    assert set(restarts.values()) == {0}, restarts


def test_koordlet_reports_the_node(installed: Kubernetes) -> None:
    def reported() -> bool:
        return "nodeMetric" in get(installed, "nodemetric", NODE).get("status", {})

    wait_for(reported, "NodeMetric has a status", 180.0)


def koordctl(kubernetes: Kubernetes, kubeconfig: Path, *arguments: str) -> Any:
    """The JSON that `koordctl` prints."""
    state = str(kubernetes.folder / "no-state")
    command = [sys.executable, "-m", "control.ctl.main", *arguments, "-o", "json"]
    command += [f"--kubeconfig={kubeconfig}", f"--state-dir={state}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("user", ["administrator", "user with the view roles"])
def test_koordctl_needs_only_a_kubeconfig(installed: Kubernetes, tmp_path: Path, user: str) -> None:
    """With the policy that limits pods/proxy to the pages."""
    installed.kubectl("apply", "-k", str(ROOT / "deploy/koordlet-policy"))
    kubeconfig = installed.kubeconfig if user == "administrator" else viewer(installed, tmp_path)
    assert [row["node"] for row in koordctl(installed, kubeconfig, "top")] == [NODE]
    assert koordctl(installed, kubeconfig, "top", "--node", NODE)["node"] == NODE
    assert "koordinator-default-quota" in koordctl(installed, kubeconfig, "quota")
    assert {row["namespace"] for row in koordctl(installed, kubeconfig, "top", "-n", NAMESPACE)["rows"]} == {NAMESPACE}


def viewer(kubernetes: Kubernetes, folder: Path) -> Path:
    """The kubeconfig of an account that has both roles of deploy/manager/view.yaml and nothing else."""
    kubernetes.kubectl("create", "serviceaccount", "reader")
    cluster_role = ("clusterrolebinding", "reader", "--clusterrole=koordinator-view")
    kubernetes.kubectl("create", *cluster_role, "--serviceaccount=default:reader")
    role = ("rolebinding", "reader", "--role=koordinator-view")
    kubernetes.kubectl("-n", NAMESPACE, "create", *role, "--serviceaccount=default:reader")
    config = yaml.safe_load(kubernetes.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": kubernetes.kubectl("create", "token", "reader").stdout.strip()}
    path = folder / "reader.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def process_with(argument: bytes) -> Path | None:
    """/proc/PID of the container on this machine whose command has the argument."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if argument in command.read_bytes().split(b"\0"):
                return command.parent
    return None


def status_of(process: Path | None) -> dict[str, str]:
    """Its /proc/PID/status."""
    assert process is not None, "it does not run here"
    lines = (process / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_koordlet_has_its_capabilities_and_no_others(installed: Kubernetes) -> None:
    (pod,) = get(installed, "pods", "-n", NAMESPACE, "-l", "koord-app=koordlet")["items"]
    context = pod["spec"]["containers"][0]["securityContext"]
    assert "privileged" not in context
    assert context["appArmorProfile"] == {"type": "Unconfined"}, "the API server converts the annotation"
    numbers = [each.number for each in CAPABILITIES if may_protect() or each.name != "SYS_RESOURCE"]
    status = status_of(process_with(b"--proc-sys-root-dir=/host-proc-sys"))
    for kind in ("CapEff", "CapPrm", "CapBnd"):
        assert int(status[kind], 16) == sum(1 << number for number in numbers)
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")


def test_koordlet_has_all_probes_and_lacks_no_right(installed: Kubernetes) -> None:
    page = koordctl(installed, installed.kubeconfig, "top", "--node", NODE)
    sources = {probe["name"]: probe["source"] for probe in page["probes"]}
    assert set(sources.values()) == {"bpf"}, page["probes"]
    lacking = {each["name"] for each in page["conditions"]}
    rights = {"cap_bpf", "cgroups_writable", "sysctls_writable", "bpffs", "root"}
    rights |= {f"cap_{each.name.lower()}" for each in CAPABILITIES}
    assert lacking & rights == (set() if may_protect() else {"cap_sys_resource"}), page["conditions"]


WRITES = """
import errno, sys
from pathlib import Path
from koordlet.system.cgroup.naming import listening_pid
from koordlet.system.network.netlink import Netlink
from koordlet.system.network.tc import Traffic
from koordlet.system.proc.kallsyms import function_ranges
from koordlet.system.roots import Roots
from koordlet.system.write import write_value
pid, interface = sys.argv[1:]
sysctl = Path("/host-proc-sys/vm/min_free_kbytes")
write_value(str(sysctl), sysctl.read_text().strip())
write_value(f"/proc/{pid}/oom_score_adj", "300")
assert listening_pid(Roots.daemonset(), 10250), "the kubelet's descriptors"
assert function_ranges(Path("/proc"), ["schedule"]), "addresses of functions"
traffic = Traffic(Netlink())
index = traffic.index(interface)
traffic.make_root(index, 1)
assert traffic.root(index)
for place in ("/usr", "/etc", "/tmp"):
    try:
        Path(place, "file").touch()
    except OSError as error:
        assert error.errno == errno.EROFS
    else:
        raise AssertionError(f"{place} can be written")
try:
    Path("/host-dev/kmsg").open("rb").close()
except OSError as error:
    assert error.errno == errno.EPERM, error
else:
    raise AssertionError("devices can be opened")
print("all done")
"""
"""What koordlet writes to and reads from the node, run in its container; arguments: a process of another user, and a
network interface."""


def test_koordlets_container_may_write_what_koordlet_writes(installed: Kubernetes) -> None:
    sleeper = subprocess.Popen(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"])
    interface = "koord-test"
    subprocess.run(["ip", "link", "add", "name", interface, "type", "bridge"], check=True)
    try:
        command = ("exec", "-n", NAMESPACE, "daemonset/koordlet", "--", "python3", "-c", WRITES)
        assert installed.kubectl(*command, str(sleeper.pid), interface).stdout == "all done\n"
        assert Path(f"/proc/{sleeper.pid}/oom_score_adj").read_text() == "300\n"
        disciplines = subprocess.run(["tc", "qdisc", "show", "dev", interface], capture_output=True, text=True).stdout
        assert "htb" in disciplines
    finally:
        sleeper.kill()
        sleeper.wait()
        subprocess.run(["ip", "link", "delete", interface], check=True)


def test_the_device_daemon_gives_up_the_rights_of_its_container(installed: Kubernetes) -> None:
    manifest = str(ROOT / "deploy/device-daemon")
    installed.kubectl("apply", "-k", manifest)
    try:
        pattern = b"--dev-root-dir=/host-dev/"

        def confined() -> bool:
            process = process_with(pattern)
            return process is not None and status_of(process)["NoNewPrivs"] == "1"

        wait_for(confined, "the daemon has given up its rights", 300.0)
        process = process_with(pattern)
        status = status_of(process)
        for kind in ("CapEff", "CapPrm", "CapBnd"):
            assert int(status[kind], 16) == sum(1 << number for number in numbers(KEPT))
        assert process is not None
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
        writable = {fields[4] for fields in mounts if fields[5].split(",")[0] == "rw"}
        assert {path for path in writable if path.startswith("/hostfs")} == {"/hostfs/tmp"}
    finally:
        installed.kubectl("delete", "-k", manifest)
