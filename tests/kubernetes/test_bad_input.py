"""Components before their installation is complete: each step that is missing is named with what to do, and no more.

The cluster is bare. Manager, scheduler and koordlet run as processes with the tokens of their ServiceAccounts. First
the token is wrong, then their rights are missing, then the CRDs; each is repaired while the components run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from tests.kubernetes.components import NODE, SERVER, Kubernetes
from tests.kubernetes.installation import NAMESPACE
from tests.kubernetes.node import ROOT
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes
LIMIT_S = 150.0
"""Of one step; components try again after at most 30 s."""
COMMANDS = {
    "koord-manager": (
        "control.manager", "--feature-gates=WebhookFramework=false", "--metrics-addr=127.0.0.1:0",
        "--health-probe-addr=127.0.0.1:18001", "--enable-pprof=false",
    ),
    "koord-scheduler": ("control.scheduler", "--port=18002", "--secure-port=0", "--config={folder}/scheduler.yaml"),
    "koordlet": (
        "koordlet", "--addr=127.0.0.1:18003", f"--node-name={NODE}", "--state-dir={folder}/state", "--bpf-pin-dir=",
        "--probes=off", "--cgroup-stats=files", "--reconcile-interval-seconds=0", "--audit-log-dir={folder}/audit",
        "--runtime-hooks-addr={folder}/hooks.sock", "--runtime-hooks-config-path={folder}/hookserver.d",
        "--pod-resources-proxy-path={folder}/pod-resources", "--xpu-device-infos-dir={folder}/devices",
        "--prediction-checkpoint-filepath={folder}/predictions", "--enable-nri-runtime-hook=false",
    ),
}  # fmt: skip
PAGES = {"koord-manager": 18001, "koord-scheduler": 18002, "koordlet": 18003}


@dataclass(slots=True)
class Running:
    """A component as a process, which is started again when it ends, as the kubelet does."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = field(default=0)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def keep_running(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        module, *flags = COMMANDS[self.name]
        self.starts += 1
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", module, f"--kubeconfig={self.kubeconfig}",
                    *(flag.format(folder=self.folder) for flag in flags),
                ],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "POD_NAME": f"{self.name}-bare", "POD_NAMESPACE": NAMESPACE},
            )  # fmt: skip

    def says(self, *texts: str) -> bool:
        self.keep_running()
        return all(text in self.log for text in texts)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="module")
def running(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """Every component with a kubeconfig whose token file has a wrong token."""
    kubernetes.kubectl("apply", "-f", str(ROOT / "deploy/manager/namespace.yaml"))
    components = {}
    for name in COMMANDS:
        kubernetes.kubectl("-n", NAMESPACE, "create", "serviceaccount", name)
        folder = tmp_path_factory.mktemp(name)
        (folder / "token").write_text("wrong")
        write_kubeconfig(kubernetes, folder / "kubeconfig", SERVER)
        components[name] = Running(name, folder)
    config = yaml.safe_load((ROOT / "deploy/scheduler/koord-scheduler-config.yaml").read_text())
    (components["koord-scheduler"].folder / "scheduler.yaml").write_text(config["data"]["koord-scheduler-config"])
    try:
        yield components
    finally:
        for component in components.values():
            component.stop()
            (kubernetes.folder / f"bare-{component.name}.log").write_text(component.log)


def write_kubeconfig(cluster: Kubernetes, path: Path, server: str) -> None:
    document = {
        "current-context": "test",
        "clusters": [
            {"name": "test", "cluster": {"server": server, "certificate-authority": f"{cluster.folder}/pki/ca.crt"}}
        ],
        "users": [{"name": "test", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(yaml.safe_dump(document))


def all_say(running: dict[str, Running], *texts: str) -> None:
    for component in running.values():
        wait_for(lambda: component.says(*texts), f"{component.name} says {texts}", LIMIT_S)  # noqa: B023


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unusable_kubeconfig_ends_the_process_with_a_reason(running: dict[str, Running], name: str) -> None:
    module, *flags = COMMANDS[name]
    folder = running[name].folder
    command = [sys.executable, "-m", module, *(flag.format(folder=folder) for flag in flags)]
    done = subprocess.run(
        [*command, f"--kubeconfig={folder}/absent"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 2) and f"kubeconfig {folder}/absent does not exist" in done.stderr, done.stderr


def test_a_wrong_address_is_named(running: dict[str, Running], kubernetes: Kubernetes) -> None:
    for component in running.values():
        write_kubeconfig(kubernetes, component.kubeconfig, "https://127.0.0.1:1")
    all_say(running, "https://127.0.0.1:1/", "check that the API server runs and that the kubeconfig has its address")
    for component in running.values():
        component.stop()
        write_kubeconfig(kubernetes, component.kubeconfig, SERVER)


def test_a_wrong_token_is_named(running: dict[str, Running]) -> None:
    all_say(running, "renew the token or client certificate")


def test_missing_rights_are_named_after_the_token_is_renewed(
    running: dict[str, Running], kubernetes: Kubernetes
) -> None:
    for component in running.values():
        token = kubernetes.kubectl("-n", NAMESPACE, "create", "token", component.name).stdout
        (component.folder / "token").write_text(token)
    all_say(running, "apply rbac.yaml", f"system:serviceaccount:{NAMESPACE}:")


def test_missing_crds_are_named_after_the_rights_are_granted(
    running: dict[str, Running], kubernetes: Kubernetes
) -> None:
    for part in ("manager", "scheduler", "koordlet"):
        kubernetes.kubectl("apply", "-f", str(ROOT / "deploy" / part / "rbac.yaml"))
    all_say(running, "apply the CRDs (deploy/crds)")


def test_everything_works_after_the_crds_are_installed(running: dict[str, Running], kubernetes: Kubernetes) -> None:
    kubernetes.kubectl("apply", "--server-side", "-k", str(ROOT / "deploy/crds"))
    for lease in ("koordinator-manager", "koord-scheduler"):
        query = ("-n", NAMESPACE, "get", "lease", lease, "-o", "jsonpath={.spec.holderIdentity}")
        wait_for(lambda: "-bare" in held(running, kubernetes, query), f"lease {lease} is held", LIMIT_S)  # noqa: B023
    for informer in ("nodes", "nodeslos", "nodemetrics"):
        wait_for(lambda: ready("koordlet", f"informer:{informer}"), f"koordlet follows {informer}", LIMIT_S)  # noqa: B023
    wait_for(lambda: ready("koordlet", "server-version"), "koordlet accepts the server's version", LIMIT_S)
    assert running["koordlet"].starts == 2, "koordlet needs no restart"  # the first had the wrong address


def held(running: dict[str, Running], cluster: Kubernetes, query: tuple[str, ...]) -> str:
    for component in running.values():
        component.keep_running()
    return cluster.kubectl(*query, check=False).stdout


def ready(name: str, check: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{PAGES[name]}/readyz/{check}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
