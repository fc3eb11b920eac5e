"""A cluster of one node with a fleet of pods, and koordlet processes over it one after the other: API server, a
kubelet's /pods, NodeSLO, a private view. What koordlet has done is told in its own rounds, not in seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from koordlet.api.encoding import crdgen
from tests.koordlet.process.cluster import NODE, TOKEN, Api, Kubelet
from tests.koordlet.process.fleet import Fleet
from tests.koordlet.process.koordletprocess import Koordlet
from tests.koordlet.process.patience import until
from tests.ports import free_port

SLO = f"/apis/slo.koordinator.sh/v1alpha1/nodeslos/{NODE}"
CRDS = ("nodeslos.slo.koordinator.sh",)
GATES = "CgroupReconcile=true"
FLAGS = (
    "--kubelet-sync-interval=0.3s",
    "--runtime-hooks-reconcile-interval=1s",
    "--probes=off",
    "--enable-node-metric-report=false",
    "--snapshot-interval=1h",
)
WAITING = "waiting for figures"


class Scene:
    def __init__(
        self,
        fleet: Fleet,
        view: Any,
        scratch: Path,
        *,
        gates: str = GATES,
        environ: Mapping[str, str] | None = None,
        koordlet_type: type[Koordlet] = Koordlet,
    ) -> None:
        """`environ`: of API server and koordlet, besides this process's."""
        self.fleet, self.view, self.environ = fleet, view, environ or {}
        self._koordlet_type = koordlet_type
        self.api = Api(scratch / "api", free_port(), environ=self.environ)
        self.kubelet = Kubelet(scratch)
        (view.scratch / "token").write_text(TOKEN)
        self._gates = gates
        self.koordlet: Any = None

    def open(self, spec: dict[str, Any] | None, *, cpus: int, memory_mib: int, crds: Container[str] = CRDS) -> None:
        """The API server with a Node and its NodeSLO; None: the caller creates it."""
        self.api.start()
        until(self.api.ready, "the API server")
        for crd in crdgen.documents().values():
            if crd["metadata"]["name"] in crds:
                self.api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        until(lambda: self.api.find(SLO.rpartition("/")[0]), "NodeSLO served")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self.api.call("POST", "/api/v1/nodes", node)
        amounts = {"cpu": str(cpus), "memory": f"{memory_mib}Mi"}
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
            "capacity": amounts,
            "allocatable": amounts,
        }
        self.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
        slo = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": NODE}}
        if spec is not None:
            self.api.call("POST", SLO.rpartition("/")[0], {**slo, "spec": spec})
        self.publish()

    def publish(self) -> None:
        """The kubelet tells of the fleet as it is now."""
        self.kubelet.pods = self.fleet.manifests(NODE)

    def ask(self, spec: dict[str, Any]) -> None:
        self.api.patch(SLO, {"spec": spec})

    def annotate(self, annotations: dict[str, str | None]) -> None:
        self.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": annotations}})

    def start(self, *flags: str) -> Any:
        self.koordlet = self._koordlet_type(
            self.view, f"--kubeconfig={self.api.kubeconfig}", f"--kubelet-token-file={self.view.scratch / 'token'}",
            f"--feature-gates={self._gates}", *FLAGS, *flags, standalone=False,
            environ=self.environ,
        )  # fmt: skip
        return self.koordlet

    def runs(self, task: str) -> int:
        """How often the periodic task began; 0 while koordlet does not answer."""
        text = self.koordlet.answer("/internal-metrics")
        sample = re.search(rf'^koord_periodic_task_runs_total{{task="{task}"}} (\d+)', (text or b"").decode(), re.M)
        return int(sample[1]) if sample else 0

    def decides(self) -> bool:
        """Whether every strategy has what it needs."""
        page = self.koordlet.answer("/enforcement")
        notes = {} if page is None else json.loads(page)["strategies"]
        return bool(notes) and WAITING not in notes.values()

    def settle(self, rounds: int = 2) -> None:
        """Until koordlet has the pods as they are now, decides, and has then finished `rounds` rounds."""
        first_round = self.runs("pods")
        until(lambda: self.runs("pods") >= first_round + 2, "two looks at the kubelet's pods")
        until(self.decides, "every strategy to have what it needs")
        begun = self.runs("qos")
        until(lambda: self.runs("qos") > begun + rounds, f"{rounds} rounds")

    def stop(self) -> int:
        """Orderly; the exit status."""
        status: int = self.koordlet.terminate()
        return status

    def close(self) -> None:
        """Everything but the tree, which its owner removes."""
        if self.koordlet is not None:
            self.koordlet.kill()
        self.kubelet.close()
        if self.api.process is not None:
            self.api.kill()
        self.fleet.close()
