"""`python -m control.standalone.kubelet`: parse the flags, build the services, run until a signal."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector

from control.standalone.kubelet.agent import Kubelet, NodeConfig
from control.standalone.kubelet.cgroups.cleanup import remove_all
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, Driver
from control.standalone.kubelet.cgroups.ownermark import CgroupMark
from control.standalone.kubelet.cgroups.pods import PodCgroups
from control.standalone.kubelet.node.apirequests import NodeApi
from control.standalone.kubelet.node.machine import MachineError, read_machine
from control.standalone.kubelet.node.sources import ClientCaller, InformerSource
from control.standalone.kubelet.node.status import ReservationError, resources
from control.standalone.kubelet.options import (
    KUBELET_VERSION,
    KubeletOptions,
    amount,
    amounts,
    kubelet_configuration,
)
from control.standalone.kubelet.pods.state import PodStore
from control.standalone.kubelet.runtimes.process import ProcessRuntime
from control.standalone.kubelet.runtimes.runtime import ContainerRuntime, RuntimeFailure
from control.standalone.kubelet.server.auth import KubeletAuth, read_token_file
from control.standalone.kubelet.server.certs import serving_certificate
from control.standalone.kubelet.server.server import KubeletEndpoints, main_server, read_only_server
from control.standalone.kubelet.server.stats import KubeletCollector
from koordlet.api.meta import ObjectReference
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.flags import FlagError, parse
from koordlet.app.health import HealthChecks
from koordlet.app.http import HttpServer, server_tls
from koordlet.app.logging import begin, get_logger
from koordlet.app.runner import Runner, run
from koordlet.app.version import user_agent
from koordlet.kube import Client, ClientConfig, ConfigError, EventRecorder

PROG = "kubelet"
log = get_logger(__name__)


class StartError(RuntimeError):
    """The kubelet cannot run with these options on this machine."""


class ApiEventRecorder:
    """Records Events about plain JSON objects, through `koordlet.kube`'s recorder."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def event(self, raw: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        meta = raw.get("metadata") or {}
        reference = ObjectReference(
            api_version=raw.get("apiVersion") or "v1",
            kind=raw.get("kind") or "Pod",
            name=meta.get("name") or "",
            namespace=meta.get("namespace") or "",
            uid=meta.get("uid") or "",
        )
        self._recorder.event(reference, kind, reason, message)


def lock(root: Path) -> TextIO:
    """Lock the state directory: two kubelets on one directory would kill each other's containers."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = (root / "kubelet.lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.close()
        raise StartError(f"{root}: another kubelet is running on this --root-dir") from error
    return handle


class _KubeletService:
    """The kubelet as a service. It starts after the HTTP server, because it registers the server's port."""

    name = "kubelet"

    def __init__(self, kubelet: Kubelet, runtime: ContainerRuntime, server: HttpServer, cleanup: bool) -> None:
        self._kubelet = kubelet
        self._runtime = runtime
        self._server = server
        self._cleanup = cleanup

    async def start(self) -> None:
        await self._kubelet.start(self._server.port)

    async def stop(self) -> None:
        await self._kubelet.stop()
        if self._cleanup:
            await self._kubelet.cleanup()
        await self._runtime.close()


async def serve(options: KubeletOptions) -> int:
    """Run until a signal; the exit status. Raises `StartError`, `FlagError`, `ConfigError`, `OSError`."""
    node = (options.node or socket.gethostname()).lower()
    handle = lock(options.root)
    try:
        return await (_clean(options) if options.cleanup else _serve(options, node))
    finally:
        handle.close()


async def _clean(options: KubeletOptions) -> int:
    """Remove what a killed kubelet left behind; needs no API server. Returns 1 when something remains."""
    tree = CgroupTree.discover(Path(options.cgroup_mount))
    runtime = _runtime(options, tree)
    cgroups = PodCgroups(tree, _names(options), options.root / "cgroups.json", 0, 0)
    store = PodStore(options.root / "pods")
    remaining = await remove_all(runtime, cgroups, store)
    await runtime.close()
    if remaining:
        log.error("Cannot remove all cgroups", cgroups=remaining)
    return 1 if remaining else 0


def service_environment(server: str) -> list[tuple[str, str]]:
    """The variables by which clients in pods find the API server: its own address, as there is no service network."""
    parts = urlsplit(server)
    return [("KUBERNETES_SERVICE_HOST", parts.hostname or ""), ("KUBERNETES_SERVICE_PORT", str(parts.port or 443))]


def _names(options: KubeletOptions) -> CgroupNames:
    return CgroupNames(Driver(options.cgroup_driver), options.cgroup_root)


def _runtime(options: KubeletOptions, tree: CgroupTree) -> ContainerRuntime:
    size = amount("container-log-max-size", options.log_max_size).value()
    if not options.runtime_endpoint:
        return ProcessRuntime(options.root / "containers", tree, size, options.log_max_files)
    # Imported here because gRPC costs memory and start-up time.
    from control.standalone.kubelet.runtimes.cri import CriRuntime
    from control.standalone.kubelet.runtimes.criclient import CriClient

    return CriRuntime(CriClient(options.runtime_endpoint), tree, size, options.log_max_files)


async def _serve(options: KubeletOptions, node: str) -> int:
    clock = SYSTEM_CLOCK
    tree = CgroupTree.discover(Path(options.cgroup_mount))
    machine = read_machine(options.root)
    node_resources = resources(
        machine,
        options.max_pods,
        amounts("kube-reserved", options.kube_reserved),
        amounts("system-reserved", options.system_reserved),
        amount("eviction-memory", options.eviction_memory).value(),
        options.eviction_disk,
    )
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    config = ClientConfig.load(
        options.kubeconfig or None,
        user_agent=user_agent(PROG),
        qps=options.kube_api_qps,
        burst=options.kube_api_burst,
    )
    client = Client(config, registry=registry)
    api = NodeApi(ClientCaller(client), node)
    events = EventRecorder(client, PROG, node)
    runtime = _runtime(options, tree)
    source = InformerSource(client, node)
    cgroup_resources = node_resources.absolute
    cgroups = PodCgroups(
        tree,
        _names(options),
        options.root / "cgroups.json",
        cgroup_resources["cpu"].milli_value(),
        cgroup_resources["memory"].value(),
        options.enforce_allocatable,
        CgroupMark.this_process(options.owner_dir, options.owner_pin_dir) if options.owner_dir else None,
    )
    kubelet = Kubelet(
        NodeConfig(
            node,
            options.ip,
            machine,
            node_resources,
            KUBELET_VERSION,
            options.node_labels,
            options.status_period,
            options.lease_seconds,
            service_environment(config.server),
            frozenset(options.privileged_namespaces),
        ),
        api,
        source,
        runtime,
        cgroups,
        PodStore(options.root / "pods"),
        ApiEventRecorder(events),
        clock,
    )
    registry.register(KubeletCollector(kubelet))
    static = read_token_file(Path(options.token_auth_file)) if options.token_auth_file else {}
    auth = KubeletAuth(api, clock, static, options.authorization_mode == "Webhook")
    health = HealthChecks()
    health.check("pod-informer", lambda: source.problem)
    if bool(options.tls_cert_file) != bool(options.tls_key_file):
        raise FlagError("--tls-cert-file and --tls-private-key-file must be set together")
    if options.tls_cert_file:
        cert, key = Path(options.tls_cert_file), Path(options.tls_key_file)
    else:
        cert, key = serving_certificate(options.root / "pki", node, options.ip)
    tls = server_tls(cert, key, Path(options.client_ca_file) if options.client_ca_file else None)
    server: HttpServer

    def configuration() -> dict[str, object]:
        return kubelet_configuration(options, node, server.port)

    endpoints = KubeletEndpoints(kubelet, configuration, clock)
    server = main_server(f"{options.bind_address}:{options.port}", endpoints, auth, registry, health, tls)
    runner = Runner(clock=clock)
    runner.add_stop("api-client", client.close)
    runner.add(events)
    runner.add(server)
    if options.read_only_port:
        addr = f"{options.bind_address}:{options.read_only_port}"
        runner.add(read_only_server(addr, endpoints, registry, health))
    if options.healthz_port:
        runner.add(HttpServer(f"127.0.0.1:{options.healthz_port}", health=health))
    runner.add(_KubeletService(kubelet, runtime, server, options.cleanup_on_exit))
    return await runner.run()


def main() -> int:
    options = parse(KubeletOptions, sys.argv[1:], prog=PROG)
    begin(options)
    try:
        return run(serve(options))
    except (StartError, FlagError, ConfigError, ReservationError, MachineError, RuntimeFailure, ValueError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return 1
    except OSError as error:
        hint = " (cgroups and other users' processes need root)" if os.geteuid() != 0 else ""
        sys.stderr.write(f"{PROG}: {error}{hint}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
