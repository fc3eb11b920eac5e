"""An API server and a kubelet on the session's containerd as processes, with pods, for clients in other processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control.standalone.apiserver.tls import kubelet_serving_certificate
from tests.runtimes.daemons import Containerd
from tests.waiting import wait_until

KUBECTL = str(Path(sys.executable).with_name("kubectl"))
NODE = "streams"
BOTH_PROTOCOLS = {
    "websocket": {},
    "spdy": {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"},
}
"""Environment of kubectl."""


class StreamNode:
    """`kubectl` runs the stock kubectl."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kubeconfig = root / "api/admin.kubeconfig"

    def argv(self, *args: str) -> list[str]:
        return [KUBECTL, f"--kubeconfig={self.kubeconfig}", *args]

    def env(self, protocol: str = "websocket") -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.root), **BOTH_PROTOCOLS[protocol]}

    def kubectl(
        self, *args: str, protocol: str = "websocket", stdin: bytes = b"", status: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            self.argv(*args), input=stdin, env=self.env(protocol), capture_output=True, timeout=60, check=False
        )
        assert status in (None, done.returncode), f"{args}: {done.returncode}\n{done.stdout!r}\n{done.stderr.decode()}"
        return done

    def create(self, name: str, *containers: dict[str, Any], **spec: Any) -> None:
        """A pod on this node; returns when it runs."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": NODE,
                "containers": list(containers),
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 1,
                **spec,
            },
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(body).encode())
        self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Running", "--timeout=50s")


def busybox(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], **more}


@contextlib.contextmanager
def running(root: Path, containerd: Containerd) -> Iterator[StreamNode]:
    node = StreamNode(root)
    with contextlib.ExitStack() as stack:

        def start(name: str, *args: str) -> None:
            log = stack.enter_context((root / f"{name}.log").open("wb"))
            process = subprocess.Popen([sys.executable, "-m", *args], stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

        start("apiserver", "control.standalone.apiserver", f"--data-dir={root / 'api'}", "--secure-port=0")
        wait_until(node.kubeconfig.exists)
        wait_until(lambda: node.kubectl("get", "--raw=/readyz", status=None).returncode == 0)
        cert, key = kubelet_serving_certificate(root / "api/pki", root / "certificates", NODE, "127.0.0.1")
        start(
            "kubelet",
            "control.standalone.kubelet",
            f"--kubeconfig={node.kubeconfig}",
            f"--node-name={NODE}",
            f"--root-dir={root / 'kubelet'}",
            f"--cgroup-root=koordtest-{os.getpid()}-{uuid.uuid4().hex[:6]}",
            f"--container-runtime-endpoint=unix://{containerd.socket}",
            "--port=0",
            "--cleanup-on-exit",
            f"--tls-cert-file={cert}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={root / 'api/pki/ca.crt'}",
        )
        wait_until(lambda: node.kubectl("get", "node", NODE, status=None).returncode == 0)
        wait_until(lambda: node.kubectl("get", "serviceaccount", "default", status=None).returncode == 0)
        yield node
