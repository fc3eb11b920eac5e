"""The two API servers that are compared: etcd with kube-apiserver, and the embedded one, on their own loopback ports.

Both run without controllers, so that every answer depends on the requests alone. Both know the same static tokens.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import threading
import time
from asyncio import Event, new_event_loop
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from control.standalone.apiserver import ApiServer
from tests.kubernetes.processes import wait_for
from tests.ports import free_port

ADMIN, TENANT = "admin-token", "tenant-token"
TOKENS = f'{ADMIN},admin,u1,"system:masters"\n{TENANT},tenant,u2,"tenants"\n'
START_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `body` is decoded JSON, else the text; a watch is a list of events."""

    status: int
    headers: Mapping[str, str]
    warnings: tuple[str, ...]
    body: Any
    text: str


class ComparedServer:
    """A server by URL, and how to send it a request."""

    def __init__(self, name: str, url: str, ca_file: Path, folder: Path) -> None:
        self.name = name
        self.url = url
        context = ssl.create_default_context(cafile=str(ca_file))
        self._http = urllib3.PoolManager(ssl_context=context, retries=False)
        self.kubeconfig = folder / f"{name}.kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
                    "users": [{"name": "u", "user": {"token": ADMIN}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        response = self._http.request(method, self.url + path, body=body, headers=dict(headers), timeout=30.0)
        text = response.data.decode(errors="replace")
        return Answer(
            response.status,
            {k.title(): v for k, v in response.headers.items() if k.lower() != "warning"},
            tuple(response.headers.getlist("Warning")),
            decoded(text),
            text,
        )


def decoded(text: str) -> Any:
    """One JSON document, or the list of those of a stream of lines; the text itself when it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line]
    except ValueError:
        return text


@contextmanager
def real_server(folder: Path, programs: Path) -> Iterator[ComparedServer]:
    """etcd and kube-apiserver, each on its own ports, ended by process id."""
    folder.mkdir()
    client, peer, port = free_port(), free_port(), free_port()
    _certificates(folder)
    (folder / "tokens.csv").write_text(TOKENS)
    etcd = [
        "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}", f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}", f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--unsafe-no-fsync",
    ]  # fmt: skip
    server = [
        str(programs / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{client}", "--bind-address=127.0.0.1",
        "--advertise-address=10.88.0.1", f"--secure-port={port}",
        f"--tls-cert-file={folder / 'server.crt'}", f"--tls-private-key-file={folder / 'server.key'}",
        f"--client-ca-file={folder / 'ca.crt'}", f"--token-auth-file={folder / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}", "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC", "--allow-privileged=true",
        "--watch-cache=false",  # what the cache answers depends on how far it follows an etcd without progress reports
    ]  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in (("etcd", etcd), ("kube-apiserver", server)):
            with (folder / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        compared = ComparedServer("real", f"https://127.0.0.1:{port}", folder / "ca.crt", folder)
        wait_for(lambda: _ready(compared), "kube-apiserver is ready", START_TIMEOUT_S)
        yield compared
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGKILL)
            process.wait()


@contextmanager
def embedded_server(folder: Path) -> Iterator[ComparedServer]:
    """The embedded server in a thread of this process, without its controllers."""
    folder.mkdir()
    tokens = folder / "tokens.csv"
    tokens.write_text(TOKENS)
    loop = new_event_loop()
    stop = Event()
    started: list[ApiServer] = []

    async def serve() -> None:
        async with ApiServer(folder / "data", token_auth_file=tokens, controllers=False) as server:
            started.append(server)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="embedded-apiserver")
    thread.start()
    try:
        wait_for(lambda: bool(started) or not thread.is_alive(), "the embedded server has started", START_TIMEOUT_S)
        yield ComparedServer("embedded", started[0].url, started[0].pki.ca_file, folder)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30.0)
        loop.close()


def _ready(server: ComparedServer) -> bool:
    try:
        ready = server.send("GET", "/readyz", None, {"Authorization": f"Bearer {ADMIN}"}).status == 200
        headers = {"Authorization": f"Bearer {ADMIN}"}
        return ready and server.send("GET", "/api/v1/namespaces/default", None, headers).status == 200
    except urllib3.exceptions.HTTPError:
        time.sleep(0.2)
        return False


def _certificates(folder: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca")
    openssl("genrsa", "-out", "accounts.key", "2048")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=s")
    (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", "server.crt", "-days", "2", "-extfile", "server.ext",
    )  # fmt: skip
