"""etcd, kube-apiserver and kube-scheduler on loopback, without nodes: enough for scheduling decisions.

The API server admits what a world needs: nodes without taints for missing conditions, pods with any priority and
without service accounts. kube-scheduler evaluates every node, has no request limit, and leaves a pod that failed alone,
so that each pod has one attempt.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

START_TIMEOUT_S = 120.0
POLL_S = 0.1
BACKOFF_S = 3600
"""Longer than a run: a pod that failed is not tried again."""
DETAIL = "schedule_one=10,eventhandlers=4,preemption=2,scheduling_queue=4"
"""Verbosity of kube-scheduler by source file."""


class ApiServerError(Exception):
    """The API server refused a request."""


class InvalidObject(ApiServerError):
    """The object breaks a rule of the API (422)."""


class ControlPlane:
    """`async with ControlPlane(folder, programs) as plane`. `log` receives the lines of kube-scheduler's log."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self._token = secrets.token_hex(16)
        self._processes: list[asyncio.subprocess.Process] = []
        self._etcd, self._peer, self.port, self._pages = (free_port() for _ in range(4))
        self.server = f"https://127.0.0.1:{self.port}"
        self._session: aiohttp.ClientSession | None = None
        self.log: asyncio.StreamReader | None = None

    async def __aenter__(self) -> ControlPlane:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def request(self, method: str, path: str, body: Any = None, *, patch: str = "") -> Any:
        """The JSON of the answer. Raises ApiServerError; `patch`: the media type of a patch."""
        assert self._session is not None
        headers = {"Content-Type": patch} if patch else {}
        async with self._session.request(method, self.server + path, json=body, headers=headers) as response:
            document = await response.json(content_type=None)
            if response.status == 422:
                raise InvalidObject(f"{method} {path}: {document.get('message')}")
            if response.status >= 400:
                raise ApiServerError(f"{method} {path}: {response.status} {document}")
            return document

    async def start_scheduler(self, *flags: str) -> asyncio.subprocess.Process:
        """kube-scheduler; its log goes to `log`."""
        configuration = self.folder / "scheduler.yaml"
        configuration.write_text(yaml.safe_dump(scheduler_configuration(self.kubeconfig())))
        process = await asyncio.create_subprocess_exec(
            str(self.programs / "kube-scheduler"), f"--config={configuration}", f"--secure-port={self._pages}",
            "--v=2", f"--vmodule={DETAIL}",
            f"--feature-gates={feature_gates(self.programs)}", *flags,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            limit=1 << 22,
        )  # fmt: skip
        self._processes.append(process)
        self.log = process.stderr
        return process

    def kubeconfig(self) -> Path:
        path = self.folder / "admin.kubeconfig"
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "user", "user": {"token": self._token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document))
        return path

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
        for process in reversed(self._processes):
            if process.returncode is None:
                process.kill()
            await process.wait()
        self._processes.clear()

    async def _start(self) -> None:
        folder = self.folder
        write_credentials(folder, self._token)
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        await self._spawn(
            "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", "--unsafe-no-fsync",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip
        await self._spawn(
            str(self.programs / "kube-apiserver"), f"--etcd-servers={client}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", f"--secure-port={self.port}",
            f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'accounts.key'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}", "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC", "--enable-priority-and-fairness=false", "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            "--disable-admission-plugins="
            "ServiceAccount,TaintNodesByCondition,Priority,StorageObjectInUseProtection,DefaultStorageClass",
        )  # fmt: skip
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=8), headers={"Authorization": f"Bearer {self._token}"}
        )
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                if await self._ready():
                    return
                await asyncio.sleep(POLL_S)

    async def _ready(self) -> bool:
        """Whether the API server serves. The namespace `default` is the last thing that it creates."""
        for process in self._processes:
            assert process.returncode is None, f"a component ended: see {self.folder}"
        try:
            await self.request("GET", "/api/v1/namespaces/default")
        except (aiohttp.ClientError, ApiServerError, ValueError):
            return False
        return True

    async def _spawn(self, *argv: str) -> None:
        with (self.folder / f"{Path(argv[0]).name}.log").open("ab") as log:
            self._processes.append(
                await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log)
            )


def feature_gates(programs: Path) -> str:
    """What kube-scheduler must not do in a comparison. It refuses a gate that its version lacks; the folder above
    `programs` is named after the minor version (build.sh)."""
    minor = int(programs.parent.name.removeprefix("v1."))
    gates = ["SchedulerPopFromBackoffQ=false"]
    if minor >= 35:
        gates.append("OpportunisticBatching=false")
    return ",".join(gates)


def write_credentials(folder: Path, token: str) -> None:
    """The key of service account tokens, and the admin's token."""
    command = ["openssl", "genrsa", "-out", str(folder / "accounts.key"), "2048"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')


def scheduler_configuration(kubeconfig: Path, percentage: int = 100, backoff: int = BACKOFF_S) -> Mapping[str, Any]:
    """kube-scheduler's defaults without request limits; `percentage` of nodes to score, 0: kube-scheduler decides."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100000, "burst": 100000},
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": percentage,
        "podInitialBackoffSeconds": backoff,
        "podMaxBackoffSeconds": backoff,
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
