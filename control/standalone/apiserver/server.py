"""`ApiServer` builds and connects all parts of the API server, for the binary and for tests in the same process.

    async with ApiServer(data_dir) as server:
        … server.url, server.kubeconfig_path, server.ca_file, server.admin_token, server.registry

Start order: lock the data directory, keys, store, kinds of the stored CRDs, socket, initial objects,
controllers; then it is ready. Stop order: not ready, no new connections, watches ended, requests finished,
controllers, store. kill -9 at any time loses no acknowledged write (see `store`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from control.standalone.apiserver.audit import RequestAuditLog
from control.standalone.apiserver.bootstrap import bootstrap, sync_api_services
from control.standalone.apiserver.kubeconfig import write_kubeconfig
from control.standalone.apiserver.policy import ServerPolicies, build_policy
from control.standalone.apiserver.tls import SERVICE_IP, Pki, ensure_pki
from control.standalone.crds import CrdController
from control.standalone.http.connect import PodStreams
from control.standalone.http.discovery import Discovery
from control.standalone.http.health import ServerHealth
from control.standalone.http.kubelet import KubeletProxy
from control.standalone.http.metrics import Metrics
from control.standalone.http.resources import MAX_BODY_BYTES, ResourceHandlers
from control.standalone.http.server import RequestDispatcher, RequestHandlers
from control.standalone.http.subresources import SubresourceHandlers
from control.standalone.http.watch import WatchConfig, stop_all
from control.standalone.kinds import Kinds
from control.standalone.store import ObjectStore, StoreError
from koordlet.app import atomicfile
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.version import VERSION

log = get_logger(__name__)

MAINTAIN_SECONDS = 5.0
STOP_SECONDS = 5.0
KEEPALIVE_SECONDS = 180.0


class AlreadyRunning(Exception):
    """Another server holds the data directory."""


@dataclass(frozen=True, slots=True)
class ApiServerConfig:
    """The configuration of an API server."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free port
    advertise: str = ""  # address in kubeconfig and certificate; default: host
    token_auth_file: Path | None = None
    audit_log: Path | None = None
    anonymous: bool = True
    controllers: bool = True
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    history_seconds: float = 300.0
    history_events: int = 50_000
    bookmark_seconds: float = 60.0
    kubelet_ca: Path | None = None  # certificates of kubelets, or of their authority; default: the server's own
    webhook_hosts: Mapping[str, str] = field(default_factory=dict)  # "namespace/service" -> "host:port"


class ApiServer:
    """One API server; it can be started once."""

    def __init__(self, data_dir: Path | str, **config: Any) -> None:
        self.config = ApiServerConfig(Path(data_dir), **config)
        self.name = "apiserver"
        self.port = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._lock: int | None = None
        self._runner: web.ServerRunner | None = None
        self._ready = False
        self._stopped = False

    async def __aenter__(self) -> ApiServer:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        host = self.config.advertise or self.config.host
        host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        return f"https://[{host}]:{self.port}" if ":" in host else f"https://{host}:{self.port}"

    @property
    def kubeconfig_path(self) -> Path:
        return self.config.data_dir / "admin.kubeconfig"

    async def start(self) -> None:
        config = self.config
        config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(config.data_dir / "lock")
        advertised = config.advertise or config.host
        self.pki: Pki = ensure_pki(config.data_dir / "pki", (advertised, config.host))
        self.admin_token = _secret(config.data_dir / "admin.token")
        self.store = ObjectStore(
            config.data_dir / "state.db",
            synchronous=config.synchronous,
            retention_seconds=config.history_seconds,
            retention_events=config.history_events,
        )
        self.kinds = Kinds()
        self.policy: ServerPolicies = build_policy(config, self.store, self.kinds, self.pki, self.admin_token)
        self.registry = self.policy.registry
        self._crds = CrdController(self.registry, lambda: sync_api_services(self.registry))
        since = await self._crds.load()
        await self._listen()
        await bootstrap(self.registry, self._service_address(), self.port, SERVICE_IP)
        self._spawn("crds", self._crds.run(since))
        self._spawn("maintain", self._maintain())
        await self.policy.start()
        write_kubeconfig(
            self.kubeconfig_path, url=self.url, ca_pem=self.pki.ca_pem, user="admin", token=self.admin_token
        )
        self._ready = True
        log.info("Serving", url=self.url, data=str(config.data_dir), revision=self.store.revision)

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._ready = False
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
            await stop_all(self.registry, self._watches)
            await self._streams.close()
            transports = [c.transport for c in self._runner.server.connections] if self._runner.server else []
            await self._runner.cleanup()
            for transport in transports:
                # Already closed, but TLS would wait 30 s for the close notification of a client that vanished.
                try:
                    if transport is not None and transport.get_write_buffer_size() == 0:
                        transport.abort()
                except AttributeError:  # asyncio's TLS transport is already detached
                    continue
            await self._kubelet.close()
            self._audit.close()
        if hasattr(self, "policy"):
            await self.policy.stop()
        await end_tasks(*self._tasks)
        if hasattr(self, "_crds"):
            await self._crds.stop()
        if hasattr(self, "store"):
            self.store.close()
        if self._lock is not None:
            os.close(self._lock)

    async def _listen(self) -> None:
        config, policy = self.config, self.policy
        self._watches = WatchConfig(config.bookmark_seconds)
        self._audit = RequestAuditLog(config.audit_log)
        resources = ResourceHandlers(self.registry, self._watches, policy.authorizer)
        self._kubelet = KubeletProxy(self.registry, self.pki.kubelet_context(config.kubelet_ca))
        self._streams = PodStreams(self.registry, self._kubelet, policy.authorizer)
        health = ServerHealth()
        health.add("store", lambda: self.store.healthy)
        health.add("poststarthook/bootstrap", lambda: None if self._ready else "not finished", ready_only=True)
        health.add("shutdown", lambda: "stopping" if self._stopped else None, ready_only=True)
        metrics = Metrics(self.store, self.kinds, lambda: resources.open_watches + self._streams.open)
        self.metrics = metrics
        handlers = RequestHandlers(
            self.registry,
            resources,
            SubresourceHandlers(
                self.registry,
                resources,
                self._kubelet,
                self._streams,
                gate=policy.eviction_gate,
                issue=policy.issue_token,
            ),
            Discovery(self.kinds),
            health,
            metrics,
            policy.authenticator,
            policy.authorizer,
            policy.reviews,
            policy.openapi,
            self._audit.write if config.audit_log else None,
            VERSION,
        )
        server = web.Server(
            RequestDispatcher(handlers).handle,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=STOP_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, config.host, config.port, ssl_context=self.pki.server_context(), backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(MAINTAIN_SECONDS)
            try:
                await self.store.maintain()
            except StoreError as error:
                log.error("Store maintenance failed, trying again", seconds=MAINTAIN_SECONDS, err=error)

    def _service_address(self) -> str:
        host = self.config.advertise or self.config.host
        return "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_report)
        self._tasks.append(task)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """Like aiohttp's request factory, with this server's limit of body sizes."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("A task of the API server ended", task=task.get_name(), err=error)


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise AlreadyRunning(f"{path.parent}: another API server uses this data directory") from error
    return handle


def _secret(path: Path) -> str:
    """A random token, stored in the data directory."""
    if path.exists() and (text := path.read_text().strip()):
        return text
    token = secrets.token_urlsafe(32)
    atomicfile.write(path, f"{token}\n".encode())
    return token
