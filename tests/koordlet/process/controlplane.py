"""koord-manager and koord-scheduler as processes beside a scene's API server, and clients that use all three.

The manager makes the scene's NodeSLO out of the ConfigMap. `Ledger` is a client of its own thread that creates and
deletes pods all the time; what the API server acknowledged must be there afterwards, however often it was killed.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import urllib.error
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from control.scheduler.config.shipped import configuration
from koordlet.api.encoding import crdgen
from koordlet.api.names import KOORDINATOR_NAMESPACE, SLO_CONFIGMAP
from tests.koordlet.process.cluster import Api
from tests.koordlet.process.scene import SLO
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
CRDS = frozenset(crd["metadata"]["name"] for crd in crdgen.documents().values())
CONFIGS = {
    "resource-threshold-config": "resourceUsedThresholdWithBE",
    "resource-qos-config": "resourceQOSStrategy",
    "cpu-burst-config": "cpuBurstStrategy",
}
"""Key of the ConfigMap -> field of NodeSLO that the manager makes of it."""
NODES, CORES, POD_CORES = 4, 16, 1
HELD = 40
"""Pods that the ledger holds; the nodes have room for NODES * CORES."""
PODS = "/api/v1/namespaces/default/pods"
UNREACHABLE = (OSError, http.client.HTTPException)
"""What a client sees of an API server that is killed, stopped or not there yet."""


class Component:
    """A process that can be killed and started again."""

    def __init__(self, name: str, argv: list[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.name, self.argv, self.environ = name, argv, {**os.environ, **environ}
        self.log_path = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.argv], stdout=log, stderr=log, cwd=ROOT, env=self.environ
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)


class ControlPlane:
    """See the module text. `scene` is not open yet."""

    def __init__(self, scene: Any, folder: Path) -> None:
        self.scene, self.api = scene, scene.api
        config = folder / "scheduler.yaml"
        profile = configuration()
        profile["leaderElection"]["leaderElect"] = False
        config.write_text(yaml.safe_dump(profile))
        kubeconfig = f"--kubeconfig={self.api.kubeconfig}"
        self.manager = Component(
            "koord-manager",
            [
                "control.manager", kubeconfig, "--metrics-addr=127.0.0.1:0", "--enable-pprof=false",
                f"--health-probe-addr=127.0.0.1:{free_port()}", "--feature-gates=WebhookFramework=false",
                "--enable-leader-election=false",
            ],
            folder, scene.environ,
        )  # fmt: skip
        self.scheduler = Component(
            "koord-scheduler",
            ["control.scheduler", f"--config={config}", kubeconfig, f"--port={free_port()}", "--address=127.0.0.1",
             "--secure-port=0"],
            folder, scene.environ,
        )  # fmt: skip

    def prepare(self) -> None:
        """Nodes for the ledger's pods, and the ConfigMap's namespace. The API server runs."""
        self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": KOORDINATOR_NAMESPACE}})
        amounts = {"cpu": str(CORES), "memory": "64Gi", "pods": "200"}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        for at in range(NODES):
            self.api.call("POST", "/api/v1/nodes", {"metadata": {"name": f"n{at}"}})
            self.api.patch(f"/api/v1/nodes/n{at}/status", {"status": status})
            self.api.patch(f"/api/v1/nodes/n{at}", {"spec": {"taints": None}})

    def configure(self, spec: dict[str, Any]) -> None:
        """Ask the manager for the NodeSLO."""
        data = {key: json.dumps({"clusterStrategy": spec[field]}) for key, field in CONFIGS.items()}
        path = f"/api/v1/namespaces/{KOORDINATOR_NAMESPACE}/configmaps"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SLO_CONFIGMAP}, "data": data}
        if self.api.find(f"{path}/{SLO_CONFIGMAP}") is None:
            self.api.call("POST", path, body)
        else:
            self.api.patch(f"{path}/{SLO_CONFIGMAP}", {"data": data})

    def asks(self, spec: dict[str, Any]) -> bool:
        """Whether the NodeSLO asks for the spec by now."""
        try:
            slo = self.api.find(SLO)
        except UNREACHABLE:
            return False
        return slo is not None and _covers(slo.get("spec", {}), {field: spec[field] for field in CONFIGS.values()})

    def close(self) -> None:
        self.manager.kill()
        self.scheduler.kill()


def _covers(actual: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(_covers(actual.get(key), value) for key, value in expected.items())
    return bool(actual == expected)


class Ledger(threading.Thread):
    """Creates a pod and deletes the oldest, again and again. A call without an answer is repeated until it has one."""

    def __init__(self, api: Api, rng: random.Random) -> None:
        super().__init__(name="ledger")
        self._api, self._rng, self._ending = api, rng, threading.Event()
        self.created: deque[str] = deque()
        """Acknowledged by the API server and not deleted by us."""
        self.deleted: list[str] = []
        self.unanswered = 0
        self.error: BaseException | None = None
        self._named = 0

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._named += 1
                if self._until_answered("POST", PODS, _pod(f"p{self._named}"), exists=409):
                    self.created.append(f"p{self._named}")
                if len(self.created) > HELD and self._until_answered("DELETE", f"{PODS}/{self.created[0]}", exists=404):
                    self.deleted.append(self.created.popleft())
                self._ending.wait(self._rng.uniform(0.05, 0.4))
        except BaseException as error:  # the storm reports it
            self.error = error
            raise

    def end(self) -> None:
        """After the call that is under way."""
        self._ending.set()
        self.join()

    def wrong(self) -> list[str]:
        """What the API server has lost or kept, and nodes that were given more than they have."""
        pods = {pod["metadata"]["name"]: pod for pod in self._api.call("GET", PODS)["items"]}
        wrong = [f"pod {name} was acknowledged and is not there" for name in self.created if name not in pods]
        wrong += [f"pod {name} was deleted and is there" for name in self.deleted if name in pods]
        known = {*self.created, *self.deleted}
        wrong += [f"pod {name} was never acknowledged" for name in pods if name not in known]
        nodes = [pod["spec"].get("nodeName", "") for pod in pods.values()]
        for node in sorted({*nodes} - {""}):
            if nodes.count(node) * POD_CORES > CORES:
                wrong.append(f"node {node} has {nodes.count(node)} pods of {POD_CORES} cores and {CORES} cores")
        return wrong

    def unbound(self) -> list[str]:
        """Pods without a node."""
        pods = self._api.call("GET", PODS)["items"]
        return [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]

    def _until_answered(self, method: str, path: str, body: Any = None, *, exists: int) -> bool:
        """`exists`: the answer to a call that an earlier attempt has already carried out. False if it was ended."""
        attempts = 0
        while not self._ending.is_set() or attempts == 0 or method == "POST":
            attempts += 1
            try:
                self._api.call(method, path, body)
                return True
            except urllib.error.HTTPError as error:
                if error.code == exists and attempts > 1:
                    return True
                if error.code < 500 and error.code != 429:
                    raise
            except UNREACHABLE:
                self.unanswered += 1
            if self._ending.wait(0.2) and method != "POST":
                break
        return False


def _pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": str(POD_CORES)}}}
    # The nodes have no kubelets: they count as unreachable after a while, and no kubelet ends a deleted pod.
    spec = {
        "schedulerName": "koord-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
