"""The koord-manager process: construction of its components, start order, and the effect of failures (spec 04 §1.6).

    API server --informers--> caches, config --> controllers (leader only) --> NodeMetric, NodeSLO, Node.status, …
                                       '-----> webhook handlers <--HTTPS-- API server

Start order: HTTP pages, caches, certificates with webhook server and webhook configurations (at most 20 s), lease.
Caches that are not filled within two minutes, a failed certificate set-up and a lost lease end the process with status
1; the Deployment restarts it. The stop order is the reverse: the lease is released first.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from control.component.clientgonames import ClientGoNames
from control.component.rights import RightsCheck
from control.component.startup import StartupStep
from control.manager.caches import Caches
from control.manager.config import ConfigCache
from control.manager.context import COMPONENT, ManagerContext
from control.manager.controller import ManagerController
from control.manager.leading import lead
from control.manager.metrics import ManagerMetrics
from control.manager.options import ManagerOptions, WebhookEnv, selected
from control.manager.parts import CONTROLLERS, WEBHOOKS
from control.manager.quota.hooks import routes as quota_routes
from control.manager.rights import needed
from control.manager.webhookserver.metrics import WebhookMetrics
from control.manager.webhookserver.ready import WebhookReady
from control.manager.webhookserver.rotation import Rotation
from control.manager.webhookserver.server import WebhookServer
from koordlet.api import gates as api_gates
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.connections import ConnectionLimits
from koordlet.app.flags import FlagError
from koordlet.app.gates import FeatureGates
from koordlet.app.health import HealthChecks
from koordlet.app.heap import FREEZE_PERIOD_S, freeze_heap
from koordlet.app.http import HttpServer
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.app.pprof import ProfileServer
from koordlet.app.runner import Runner
from koordlet.app.version import user_agent
from koordlet.kube import Client, ClientConfig, EventRecorder
from koordlet.kube.securepages import SecurePages
from koordlet.kube.serverversion import ServerVersionCheck
from koordlet.version import VERSION

log = get_logger(__name__)

CACHE_TIMEOUT_S = 120.0
CERTIFICATE_TIMEOUT_S = 20.0


class ManagerStartError(Exception):
    """A required component did not start in time."""


class Manager:
    """One koord-manager. `run` returns the exit status of the process."""

    def __init__(
        self,
        options: ManagerOptions,
        environ: Mapping[str, str] = os.environ,
        *,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        alone: bool = False,
    ) -> None:
        """`alone`: the process runs nothing else, so process-wide settings (garbage collector) may be changed.

        Raises FlagError, GateError, ConfigError for invalid flags, feature gates, kubeconfig.
        """
        self._alone = alone
        self.env = WebhookEnv.read(environ)
        gates = FeatureGates(api_gates.MANAGER)
        gates.set(options.feature_gates)
        self.runner = Runner(clock=clock)
        self.health = HealthChecks()
        framework, internal, external = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
        config = _limited(config or ClientConfig.load(options.kubeconfig or None), options)
        client = Client(config, clock=clock, registry=framework)
        events = EventRecorder(client, COMPONENT)
        caches = Caches(client, namespace=options.namespace, resync_seconds=options.resync_seconds)
        slo = ConfigCache(
            client,
            events,
            namespace=options.config_namespace,
            name=options.slo_config_name,
            registry=internal,
            strict_parity=options.strict_parity,
        )
        self.context = ManagerContext(
            options, gates, client, caches, slo, events, framework, internal, external, self.env.namespace
        )
        self.controllers = self._controllers()
        self.server: WebhookServer | None = None
        self.leads = not options.enable_leader_election
        self.rotation: Rotation | None = None
        if gates.enabled("WebhookFramework"):
            self.server = self._webhooks()
        self.pages: dict[str, HttpServer] = {}
        self.secure_pages: SecurePages | None = None
        if options.authorizes_any(options.metrics_addr, options.pprof_addr if options.enable_pprof else ""):
            self.secure_pages = SecurePages(options, config, registry=framework, clock=clock)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=framework)
        ManagerMetrics.of(internal)
        WebhookMetrics.of(internal)
        ClientGoNames(framework, urlsplit(client.config.server).netloc)

    async def run(self) -> int:
        """Start all components, serve until a signal or a failure, stop all components."""
        context, runner = self.context, self.runner
        runner.add_stop("api-client", context.client.close)
        if self.secure_pages is not None:
            runner.add_stop("page-reviews", self.secure_pages.close)
            runner.add(self.secure_pages.reload)
        self._serve_pages()
        version = ServerVersionCheck(context.client)
        self.health.check(version.name, lambda: version.problem)
        # not a health check: webhooks must answer although a controller lacks rights
        rights = RightsCheck(context.client, "manager", needed(context.gates))
        for service in (version, rights, context.events, context.config, context.caches):
            runner.add(service)
        runner.add(StartupStep("caches-synced", self._caches_synced))
        if self._alone:
            runner.add(Periodic("settle-heap", FREEZE_PERIOD_S, freeze_heap, jitter=0.2, registry=context.internal))
        if self.server is not None:
            self._serve_webhooks(self.server)
        runner.spawn("controllers", lambda: lead(context, self.controllers, self._on_leadership))
        log.info("Starting koord-manager", version=VERSION, gates=str(context.gates))
        for gate in changed_without_effect(context.gates):
            log.warning("Feature gate has no effect in koord-manager", gate=gate)
        return await runner.run()

    def _controllers(self) -> list[ManagerController]:
        items = self.context.options.controllers
        unknown = {item.removeprefix("-") for item in items} - CONTROLLERS.keys() - {"*"}
        if unknown:
            raise FlagError(f"--controllers: there is no controller {', '.join(sorted(unknown))}")
        return [build(self.context) for name, build in CONTROLLERS.items() if selected(name, items)]

    def _webhooks(self) -> WebhookServer:
        client_ca = self.context.options.webhook_client_ca_file
        server = WebhookServer(
            self.env.cert_dir,
            host=self.context.options.webhook_bind_address,
            port=self.env.port,
            registry=self.context.framework,
            clock=self.context.clock,
            client_ca=Path(client_ca) if client_ca else None,
        )
        for build, gate in WEBHOOKS:
            if self.context.gates.enabled(gate):
                server.register(build(self.context))
        server.add_routes(quota_routes(self.context))
        return server

    def _serve_pages(self) -> None:
        context, options = self.context, self.context.options
        pages = {
            "/metrics": (context.framework,),
            "/internal-metrics": (context.internal,),
            "/external-metrics": (context.external,),
            "/all-metrics": (context.internal, context.external, context.framework),
        }
        tls, middlewares = self._authorization(options.metrics_addr)
        shared = options.metrics_addr == options.health_probe_addr and not options.metrics_addr.endswith(":0")
        self.pages["metrics"] = self.pages["probes"] = HttpServer(
            options.metrics_addr,
            registries=pages,
            health=self.health if shared else None,
            sliced=True,
            tls=tls,
            middlewares=middlewares,
            limits=ConnectionLimits(),
        )
        if not shared:
            self.pages["probes"] = HttpServer(options.health_probe_addr, health=self.health, limits=ConnectionLimits())
        for server in dict.fromkeys(self.pages.values()):
            self.runner.add(server)
        if options.enable_pprof:
            tls, middlewares = self._authorization(options.pprof_addr)
            profiles = ProfileServer(options.pprof_addr, tls=tls, middlewares=middlewares)
            self.pages["pprof"] = profiles.server
            self.runner.add(profiles)

    def _authorization(self, addr: str) -> tuple[ssl.SSLContext | None, tuple[Middleware, ...]]:
        """TLS and authorization of the pages at an address."""
        return SecurePages.of(self.secure_pages if self.context.options.authorizes(addr) else None)

    def _serve_webhooks(self, server: WebhookServer) -> None:
        context = self.context
        client = Client(
            replace(context.client.config, user_agent=f"{COMPONENT}/webhook-controller"),
            clock=context.clock,
            registry=context.framework,
        )
        self.runner.add_stop("webhook-client", client.close)
        rotation = self.rotation = Rotation(
            client, self.env, server, registry=context.framework, leads=lambda: self.leads
        )
        ready = WebhookReady(rotation, server, self.env.cert_dir, context.clock)
        self.health.check("webhook-ready", ready.check)
        self.runner.add(rotation)
        self.runner.add(StartupStep("certificates", lambda: self._certificates(rotation)))
        self.runner.add(ready)

    def _on_leadership(self, leads: bool) -> None:
        self.leads = leads
        if self.rotation is not None:
            self.rotation.leadership_changed()

    async def _caches_synced(self) -> None:
        caches, config = self.context.caches, self.context.config
        try:
            async with self.context.clock.timeout(CACHE_TIMEOUT_S):
                await asyncio.gather(caches.synced(), config.informer.synced.wait())
        except TimeoutError as error:
            informer = config.informer
            late = caches.late() + ([] if informer.synced.is_set() else [f"{informer.name}: {informer.problem}"])
            reasons = "; ".join(late)
            raise ManagerStartError(f"caches are not filled after {CACHE_TIMEOUT_S:g} s: {reasons}") from error

    async def _certificates(self, rotation: Rotation) -> None:
        try:
            async with self.context.clock.timeout(CERTIFICATE_TIMEOUT_S):
                await rotation.initialised.wait()
        except TimeoutError as error:
            raise ManagerStartError(
                f"certificates and webhook configurations are not set up after {CERTIFICATE_TIMEOUT_S:g} s:"
                f" {rotation.missing() or 'the log has the reason'}"
            ) from error


def _limited(config: ClientConfig, options: ManagerOptions) -> ClientConfig:
    """The configuration with koord-manager's user agent and the rate limits of the flags where they are > 0."""
    return replace(
        config,
        user_agent=user_agent(COMPONENT),
        qps=float(options.rest_config_qps) if options.rest_config_qps > 0 else config.qps,
        burst=options.rest_config_burst if options.rest_config_burst > 0 else config.burst,
    )


def changed_without_effect(gates: FeatureGates) -> list[str]:
    """Gates that were set to another value than their default, and that no code of koord-manager reads."""
    return [name for name in api_gates.MANAGER_WITHOUT_EFFECT if gates.enabled(name) != api_gates.MANAGER[name].default]
