"""The parts of a node: command line, port, and readiness check of each. They start in this order."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from control.ctl.errors import CtlError
from control.ctl.manifests.cluster import (
    DESCHEDULER,
    KOORDLET,
    KUBELET,
    MANAGER,
    SCHEDULER,
    SECOND_KUBELET,
    descheduler_configuration,
    scheduler_configuration,
)
from control.ctl.node import cluster, containers
from control.ctl.node.state import NodeSettings
from control.ctl.views.koordletclient import KoordletUnreachable, fetch_ready, fetch_top
from control.standalone.apiserver.tls import PkiError, kubelet_serving_certificate
from koordlet.api.core import Node
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.kube import Client, ClientConfig, KubeError

REQUEST_TIMEOUT_S = 3.0
SECOND_CGROUP_ROOT = "koord-second-node"
"""Parent directory of the second node's kubepods cgroups."""
PODS = "pods"
"""koordlet's check that fails while the node has no pod, as on every new node."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths in one state directory."""

    root: Path

    @property
    def admin_kubeconfig(self) -> Path:
        return self.root / "apiserver" / "admin.kubeconfig"

    @property
    def kubelet_root(self) -> Path:
        return self.root / "kubelet"

    @property
    def pki(self) -> Path:
        return self.root / "apiserver" / "pki"

    @property
    def kubelet_certificates(self) -> Path:
        return self.root / "kubelet-certificates"

    @property
    def second_kubelet_root(self) -> Path:
        return self.root / "second-kubelet"

    @property
    def second_kubelet_certificates(self) -> Path:
        return self.root / "second-kubelet-certificates"

    @property
    def kubelet_roots(self) -> tuple[Path, Path]:
        """Of both nodes, whether or not there is a second one."""
        return self.kubelet_root, self.second_kubelet_root

    @property
    def descheduler_config(self) -> Path:
        return self.root / "descheduler" / "config.yaml"

    def kubeconfig(self, account: str) -> Path:
        return self.root / "kubeconfig" / f"{account}.kubeconfig"

    @property
    def scheduler_config(self) -> Path:
        return self.root / "scheduler" / "config.yaml"

    def agents(self, settings: NodeSettings) -> list[cluster.Agent]:
        """The accounts that need a kubeconfig."""
        second = (SECOND_KUBELET, DESCHEDULER) if settings.second_node else ()
        accounts = (MANAGER, SCHEDULER, KUBELET, KOORDLET, *second)
        return [cluster.Agent(account, self.kubeconfig(account)) for account in accounts]


@dataclass(frozen=True, slots=True)
class Part:
    """One part. `problem`: None when the part is ready, else the reason."""

    name: str
    argv: Callable[[Layout, NodeSettings], list[str]]
    port: Callable[[NodeSettings], int] | None
    """Its port; None: it serves on a unix socket only."""
    problem: Callable[[Layout, NodeSettings], Awaitable[str | None]]
    ready_seconds: float
    stop_seconds: float
    environ: Callable[[Layout, NodeSettings], Mapping[str, str]] = lambda _, __: {}
    files: Callable[[Layout, NodeSettings], Mapping[Path, str]] = lambda _, __: {}
    """Files written before the start."""
    before: Callable[[Layout, NodeSettings], None] = lambda _, __: None
    """Called before the start."""
    after: Callable[[Layout, NodeSettings], Awaitable[None]] | None = None
    """Called once when the part is ready after a start."""
    runtime: str = ""
    """Only started with this container runtime; "": always."""
    second: bool = False
    """Only started with a second node."""


def _module(name: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", name, *flags]


def _apiserver(layout: Layout, settings: NodeSettings) -> list[str]:
    return _module(
        "control.standalone.apiserver",
        f"--data-dir={layout.root / 'apiserver'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={settings.apiserver_port}",
    )


def _manager(layout: Layout, settings: NodeSettings) -> list[str]:
    address = f"127.0.0.1:{settings.manager_port}"
    return _module(
        "control.manager",
        f"--kubeconfig={layout.kubeconfig(MANAGER)}",
        f"--metrics-addr={address}",
        f"--health-probe-addr={address}",
        "--enable-pprof=false",
        "--webhook-bind-address=127.0.0.1",
        "--enable-leader-election=false",  # it is the only replica: a new one need not wait for a lease
    )


def _manager_environ(layout: Layout, settings: NodeSettings) -> dict[str, str]:
    return {
        "WEBHOOK_HOST": "127.0.0.1",
        "WEBHOOK_PORT": str(settings.webhook_port),
        "WEBHOOK_CERT_DIR": str(layout.root / "manager" / "certificates"),
    }


def _scheduler(layout: Layout, settings: NodeSettings) -> list[str]:
    return _module(
        "control.scheduler",
        f"--kubeconfig={layout.kubeconfig(SCHEDULER)}",
        f"--config={layout.scheduler_config}",
        "--address=127.0.0.1",
        f"--port={settings.scheduler_port}",
        "--secure-port=0",
    )


def _descheduler(layout: Layout, _: NodeSettings) -> list[str]:
    return _module(
        "control.descheduler",
        f"--kubeconfig={layout.kubeconfig(DESCHEDULER)}",
        f"--config={layout.descheduler_config}",
        "--secure-port=0",
    )


def _kubelet(layout: Layout, settings: NodeSettings) -> list[str]:
    return _module(
        "control.standalone.kubelet",
        f"--kubeconfig={layout.kubeconfig(KUBELET)}",
        f"--node-name={settings.node_name}",
        f"--root-dir={layout.kubelet_root}",
        f"--port={settings.kubelet_port}",
        f"--container-runtime-endpoint={containers.endpoint(layout.root, settings)}",
        *_kubelet_flags(layout, settings, layout.kubelet_certificates),
    )


def _second_kubelet(layout: Layout, settings: NodeSettings) -> list[str]:
    """Its pods are plain processes: two kubelets cannot share a container runtime."""
    return _module(
        "control.standalone.kubelet",
        f"--kubeconfig={layout.kubeconfig(SECOND_KUBELET)}",
        f"--node-name={settings.second_node}",
        f"--root-dir={layout.second_kubelet_root}",
        f"--port={settings.second_kubelet_port}",
        f"--cgroup-root={SECOND_CGROUP_ROOT}",
        *_kubelet_flags(layout, settings, layout.second_kubelet_certificates),
    )


def _kubelet_flags(layout: Layout, settings: NodeSettings, certificates: Path) -> list[str]:
    return [
        f"--owner-dir={layout.root}",
        f"--owner-pin-dir={settings.bpf_pin_dir}",
        f"--cgroup-driver={settings.cgroup_driver}",
        f"--tls-cert-file={certificates / 'kubelet.crt'}",
        f"--tls-private-key-file={certificates / 'kubelet.key'}",
        f"--client-ca-file={layout.pki / 'ca.crt'}",
        "--cleanup-on-exit",
        *([f"--privileged-namespaces={KOORDINATOR_NAMESPACE}"] if settings.bare else ()),
    ]


def _runtimeproxy(layout: Layout, settings: NodeSettings) -> list[str]:
    return _module("runtimeproxy", *containers.proxy_flags(layout.root, settings))


def _koordlet(layout: Layout, settings: NodeSettings) -> list[str]:
    return _module(
        "koordlet",
        f"--kubeconfig={layout.kubeconfig(KOORDLET)}",
        f"--node-name={settings.node_name}",
        f"--kubelet-certificate-authority={layout.pki / 'ca.crt'}",
        f"--addr=127.0.0.1:{settings.koordlet_port}",
        f"--state-dir={layout.root / 'koordlet'}",
        f"--prediction-checkpoint-filepath={layout.root / 'koordlet/predictions'}",
        f"--runtime-hooks-addr={layout.root / 'koordlet/hooks.sock'}",
        f"--runtime-hooks-host-endpoint={layout.root / 'koordlet/hooks.sock'}",
        f"--runtime-hooks-config-path={containers.hook_servers(layout.root, settings)}",
        f"--bpf-pin-dir={settings.bpf_pin_dir}",
        f"--probes={settings.probes}",
        f"--node-metric-min-report-interval={min(settings.report_interval, 30)}s",
        "--feature-gates=CPICollector=true,ColdPageCollector=true,GPUEnvInject=true",
    )


async def _apiserver_problem(layout: Layout, settings: NodeSettings) -> str | None:
    if not layout.admin_kubeconfig.exists():
        return "has not written admin.kubeconfig yet"
    try:
        async with Client(ClientConfig.load(layout.admin_kubeconfig, timeout=REQUEST_TIMEOUT_S)) as client:
            if not client.config.server.endswith(f":{settings.apiserver_port}"):
                return "admin.kubeconfig still names another port"
            await client.raw("GET", "/readyz", accept="*/*")
    except KubeError as error:
        return str(error)
    return None


async def _containerd_problem(layout: Layout, _: NodeSettings) -> str | None:
    return await containers.problem(layout.root)


async def _containerd_after(layout: Layout, _: NodeSettings) -> None:
    await containers.after(layout.root)


async def _runtimeproxy_problem(_: Layout, settings: NodeSettings) -> str | None:
    return await _not_ok(f"http://127.0.0.1:{settings.runtimeproxy_port}/healthz")


async def _manager_problem(_: Layout, settings: NodeSettings) -> str | None:
    return await _not_ok(f"{settings.manager_url}/readyz")


async def _scheduler_problem(_: Layout, settings: NodeSettings) -> str | None:
    return await _not_ok(f"{settings.scheduler_url}/apis/v1/__services__")  # responds once scheduling has started


async def _not_ok(url: str) -> str | None:
    """None when `url` responds with status 200, else the response's text."""
    try:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            text = (await response.text())[:300].strip()
            return None if response.status == 200 else text
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return str(error) or type(error).__name__


async def _descheduler_problem(_: Layout, settings: NodeSettings) -> str | None:
    return await _not_ok(f"{settings.descheduler_url}/readyz")


def _certify(layout: Layout, certificates: Path, node: str) -> None:
    try:
        kubelet_serving_certificate(layout.pki, certificates, node, "127.0.0.1")
    except PkiError as error:
        raise CtlError(f"cannot issue the kubelet's certificate: {error}") from error


async def _kubelet_problem(layout: Layout, node_name: str) -> str | None:
    """Through the API server, which verifies the kubelet: no credential of the administrator reaches the kubelet."""
    try:
        async with Client(ClientConfig.load(layout.admin_kubeconfig, timeout=REQUEST_TIMEOUT_S)) as client:
            node = await client.get(Node, node_name)
            await client.raw("GET", f"/api/v1/nodes/{node_name}/proxy/healthz", accept="*/*")
    except KubeError as error:
        return str(error) or type(error).__name__
    ready = next((c for c in node.status.conditions if c.type == "Ready"), None)
    return None if ready is not None and ready.status == "True" else "Node is not Ready"


async def _koordlet_problem(_: Layout, settings: NodeSettings) -> str | None:
    try:
        readiness = await fetch_ready(settings.koordlet_url)
        failed = [f"{name}: {reason}" for name, reason in readiness.items() if reason is not None and name != PODS]
        if failed:
            return "; ".join(failed)
        top = await fetch_top(settings.koordlet_url)
    except KoordletUnreachable as error:
        return error.message
    return None if top.cpu is not None else "no first sample yet"


PARTS = (
    Part("apiserver", _apiserver, lambda s: s.apiserver_port, _apiserver_problem, 60.0, 15.0),
    Part("manager", _manager, lambda s: s.manager_port, _manager_problem, 60.0, 15.0, _manager_environ),
    Part(
        "scheduler",
        _scheduler,
        lambda s: s.scheduler_port,
        _scheduler_problem,
        60.0,
        15.0,
        files=lambda layout, _: {layout.scheduler_config: scheduler_configuration()},
    ),
    Part(
        "containerd",
        lambda layout, _: containers.argv(layout.root),
        None,
        _containerd_problem,
        60.0,
        15.0,
        before=lambda layout, settings: containers.before(layout.root, settings),
        after=_containerd_after,
        runtime=containers.CONTAINERD,
    ),
    Part(
        "runtimeproxy",
        _runtimeproxy,
        lambda s: s.runtimeproxy_port,
        _runtimeproxy_problem,
        60.0,
        15.0,
        before=lambda layout, settings: containers.create_hook_servers(layout.root, settings),
        runtime=containers.CONTAINERD,
    ),
    Part(
        "kubelet",
        _kubelet,
        lambda s: s.kubelet_port,
        lambda layout, settings: _kubelet_problem(layout, settings.node_name),
        60.0,
        40.0,
        before=lambda layout, settings: _certify(layout, layout.kubelet_certificates, settings.node_name),
    ),
    Part(
        "koordlet",
        _koordlet,
        lambda s: s.koordlet_port,
        _koordlet_problem,
        60.0,
        15.0,
        lambda _, __: {"agent_mode": "hostMode"},
    ),
    Part(
        "second-kubelet",
        _second_kubelet,
        lambda s: s.second_kubelet_port,
        lambda layout, settings: _kubelet_problem(layout, settings.second_node),
        60.0,
        40.0,
        before=lambda layout, settings: _certify(layout, layout.second_kubelet_certificates, settings.second_node),
        second=True,
    ),
    Part(
        "descheduler",
        _descheduler,
        lambda s: s.descheduler_port,
        _descheduler_problem,
        60.0,
        15.0,
        files=lambda layout, settings: {
            layout.descheduler_config: descheduler_configuration(f"127.0.0.1:{settings.descheduler_port}")
        },
        second=True,
    ),
)
INSTALLED = ("manager", "scheduler", "koordlet")
"""What an installation from deploy/ brings, and a bare node lacks."""


def of(settings: NodeSettings) -> list[Part]:
    """The parts of a node with these settings, in start order."""
    left_out = INSTALLED if settings.bare else ()
    return [
        part
        for part in PARTS
        if part.runtime in ("", settings.runtime)
        and part.name not in left_out
        and (settings.second_node or not part.second)
    ]
