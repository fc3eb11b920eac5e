"""An API server process and a kubelet for tests of a koordlet process with a cluster."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.certificates import self_signed_files

NODE = "own-node"
TOKEN = "kubelet-token"
METRIC = f"/apis/slo.koordinator.sh/v1alpha1/nodemetrics/{NODE}"
DEVICE = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NODE}"
TOPOLOGY = f"/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/{NODE}"


class Api:
    """An API server process that can be killed and started again, and a client of it."""

    def __init__(self, directory: Path, port: int, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        """`environ` is added to this process's."""
        self.directory, self.port, self.flags = directory, port, flags
        self.environ = {**os.environ, **(environ or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.kubeconfig = directory / "admin.kubeconfig"

    def start(self) -> None:
        with (self.directory.parent / "apiserver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "control.standalone.apiserver", f"--data-dir={self.directory}",
                    f"--secure-port={self.port}", "--watch-history=1s", "--watch-history-events=100",
                    *self.flags,
                ],
                stdout=log, stderr=log, env=self.environ,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def ready(self) -> bool:
        try:
            return self.kubeconfig.exists() and self.call("GET", "/readyz") is not None
        except OSError:
            return False

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        context, token = _credentials(self.kubeconfig.read_text())
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            text = response.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def patch(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def find(self, path: str) -> Any:
        try:
            return self.call("GET", path)
        except urllib.error.HTTPError as error:
            assert error.code == 404, error
            return None


@lru_cache
def _credentials(kubeconfig: str) -> tuple[ssl.SSLContext, str]:
    """The server's authority and the user's token; reading them costs more than a call."""
    config = yaml.safe_load(kubeconfig)
    ca = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    return ssl.create_default_context(cadata=ca), config["users"][0]["user"]["token"]


class Kubelet:
    """/pods and /configz over TLS; `silent` hangs up. `keeps_connections`, as a real kubelet does: without it a stop
    ends them all."""

    def __init__(self, directory: Path, *, keeps_connections: bool = False) -> None:
        self.pods: list[Any] = []
        self.cgroup_driver = "cgroupfs"
        self.silent = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keeps_connections else "HTTP/1.0"

            def do_GET(self) -> None:
                if outer.silent or not outer.lets_in(self.headers.get("Authorization", ""), self.path):
                    self.close_connection = True
                    return
                answer = {"kubeletconfig": {"cgroupDriver": outer.cgroup_driver}}
                pods = {"kind": "PodList", "apiVersion": "v1", "items": outer.pods}
                body = json.dumps(pods if self.path.startswith("/pods") else answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(*self_signed_files(directory, "kubelet"))
        self._handler = Handler
        self.port = 0
        self.listen()

    def listen(self) -> None:
        """On the port of the first time."""
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self.server.socket = self._tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def lets_in(self, authorization: str, path: str) -> bool:
        """Whether a client with this header may read `path`."""
        return authorization == f"Bearer {TOKEN}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def https_status(port: int, path: str, bearer: str = "") -> int:
    """Of a GET of a page of this machine; 0 while the port does not answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as response:
            code: int = response.status
            return code
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
