"""The process: pages, then caches, then leader election, then passes (spec 07 §1).

No pass runs before every store is complete. When the lease is lost, the process exits with status 1. A signal ends the
pass in progress between two API calls; evictions that were requested stay.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TextIO
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from control.component import configfile
from control.component.certificate import reloaded, secure_certificate
from control.component.clientgonames import ClientGoNames, register_build_info
from control.component.connection import client_config, delegated_auth
from control.component.election import lead, lease_elector
from control.component.metricsreset import reset_route
from control.component.pages import ComponentPages, configz, debug_flags, host_and_port, integer, set_verbosity
from control.component.rights import RightsCheck
from control.component.startup import StartupStep, caches_synced
from control.descheduler.config.addresses import hosts_and_ports, is_local
from control.descheduler.config.load import DeschedulerSettings, load, shown
from control.descheduler.config.model import COMPONENT
from control.descheduler.drain.controller import DrainController
from control.descheduler.drain.effects import TRIGGER
from control.descheduler.drain.pages import drain_routes
from control.descheduler.framework.evictor import EvictionProxy, PlannedEviction, PluginEvictor
from control.descheduler.framework.handle import LeaseReference, PluginHandle, ProcessParts
from control.descheduler.framework.limiter import EvictionLimiter
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.descheduler.framework.profile import DeschedulerProfile
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.migration import SHARED, Migration
from control.descheduler.plugins.registry import PLUGINS
from control.descheduler.process.loop import DeschedulingLoop
from control.descheduler.process.options import DeschedulerOptions
from control.descheduler.process.preview import printed
from control.descheduler.process.rights import needed
from control.descheduler.state.cluster import ClusterState
from control.descheduler.state.objects import descheduler_objects, follow
from koordlet.api.gates import DESCHEDULER
from koordlet.app import pprof
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.flags import unused
from koordlet.app.gates import FeatureGates
from koordlet.app.health import HealthChecks
from koordlet.app.http import HttpServer
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.app.runner import Runner
from koordlet.kube import Client, ClientConfig, EventRecorder
from koordlet.kube.serverversion import ServerVersionCheck

log = get_logger(__name__)

PLACEMENTS_PERIOD_S = 300.0
"""How often placement rules that no pod has any more are dropped."""


def read_settings(options: DeschedulerOptions) -> DeschedulerSettings:
    """The configuration file with the flags applied. Raises ConfigurationError."""
    settings = load(configfile.read_file(options.config), PLUGINS)
    configuration = settings.configuration
    if not options.config:
        address = host_and_port(options.address, options.port)
        configuration.healthz_bind_address = configuration.metrics_bind_address = address
    configfile.apply_lease_flags(configuration.leader_election, options)
    connection = configuration.client_connection
    connection.kubeconfig = options.kubeconfig or connection.kubeconfig
    return settings


def write_configuration(options: DeschedulerOptions) -> None:
    """`--write-config-to`. Raises ConfigurationError."""
    configfile.write_file(shown(read_settings(options)), options.write_config_to)


class Descheduler:
    """`run()` serves until a signal and returns the exit status."""

    def __init__(
        self, options: DeschedulerOptions, *, config: ClientConfig | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Raises ConfigurationError, GateError, ConfigError for unusable settings."""
        self.options = options
        self.settings = read_settings(options)
        gates = FeatureGates(DESCHEDULER)
        gates.set(options.feature_gates)
        self.registry = CollectorRegistry()
        self.runner = Runner(clock=clock)
        self.health = HealthChecks()
        configuration = self.settings.configuration
        config = client_config(config, configuration.client_connection, options, COMPONENT)
        self.client = Client(config, clock=clock, registry=self.registry)
        # A separate rate limit: evictions must not delay the lease.
        self.lease_client = Client(replace(config, qps=0), clock=clock, registry=self.registry)
        self.state = ClusterState()
        self.objects = descheduler_objects(self.client)
        follow(self.objects, self.state)
        self.planned: list[PlannedEviction] = []
        """What a dry run would evict."""
        self.metrics = DeschedulerMetrics.of(self.registry)
        self.limiter = EvictionLimiter(self.settings.limits)
        self.parts = ProcessParts(
            self.state,
            self.objects,
            self.client,
            clock,
            gates,
            self.registry,
            configuration.dry_run or options.dry_run,
            configuration.descheduling_interval.seconds,
            preview=options.dry_run,
            lease=self._lease(),
        )
        self.profiles = [self._profile(index) for index in range(len(self.settings.profiles))]
        self.drains = self._drains() if gates.enabled("DrainController") else None
        self.loop = DeschedulingLoop(
            self.profiles,
            self.state,
            self.limiter,
            clock,
            self.metrics,
            interval_s=self.parts.interval_s,
            node_selector=configuration.node_selector,
        )
        self.pages = ComponentPages(self.registry, self.health)
        self.elector = None
        if not options.dry_run:
            self.elector = lease_elector(self.lease_client, configuration.leader_election, self.registry, self.health)
        self._certificate = secure_certificate(options)
        self.leading = False
        self.servers: list[HttpServer] = []
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        ClientGoNames(self.registry, urlsplit(config.server).netloc)
        register_build_info(self.registry)

    def _lease(self) -> LeaseReference | None:
        lease = self.settings.configuration.leader_election
        if self.options.dry_run or not lease.leader_elect:
            return None
        return LeaseReference(lease.resource_namespace, lease.resource_name)

    def _profile(self, index: int) -> DeschedulerProfile:
        settings = self.settings.profiles[index]
        proxy = EvictionProxy(settings.name, self.limiter, dry_run=self.parts.dry_run, observe=self._observe)
        events = EventRecorder(self.client, settings.name)
        return DeschedulerProfile(settings, PLUGINS, self.parts, proxy, events)

    def _drains(self) -> DrainController:
        """Its jobs run in the migration controller of the profiles; without one, in one with default arguments."""
        profile = self.profiles[0]
        proxy = EvictionProxy(profile.name, self.limiter, dry_run=self.parts.dry_run)
        handle = PluginHandle(self.parts, profile.name, TRIGGER, PluginEvictor(proxy, TRIGGER), profile.events)
        return DrainController(handle, handle.share(SHARED, lambda: Migration(MigrationControllerArgs(), handle)))

    def _observe(self, eviction: PlannedEviction) -> None:
        if eviction.dry_run:
            self.metrics.planned.labels(eviction.plugin, eviction.profile).inc()
            if self.options.dry_run:
                self.planned.append(eviction)

    async def run(self) -> int:
        """Start everything, run passes until a signal or a failure, stop everything."""
        runner = self.runner
        for client in (self.client, self.lease_client):
            runner.add_stop("api-client", client.close)
        self._serve()
        version = ServerVersionCheck(self.client)
        self.health.check(version.name, lambda: version.problem)
        runner.add(version)
        features = [] if self.parts.dry_run else needed(self.settings.profiles, drains=self.drains is not None)
        rights = RightsCheck(self.client, "descheduler", features)
        self.health.check(rights.name, lambda: rights.problem)
        runner.add(rights)
        for profile in self.profiles:
            runner.add(profile.events)
        runner.add(self.objects)
        runner.add(StartupStep("caches-synced", self._synced))
        runner.add(
            Periodic(
                "placement-rules",
                PLACEMENTS_PERIOD_S,
                self.state.drop_unused_placements,
                immediate=False,
                clock=self.parts.clock,
                registry=self.registry,
            )
        )
        runner.spawn("descheduling", lambda: lead(self.elector, self._deschedule))
        log.info("Starting koord-descheduler", profiles=",".join(profile.name for profile in self.profiles))
        for name in unused(self.options):
            log.warning("Flag has no effect in this build", flag=f"--{name}")
        return await runner.run()

    async def preview(self, out: TextIO = sys.stdout) -> int:
        """`--dry-run`: one pass, printed. Returns the exit status: 1 if the pass was not complete."""
        try:
            await self.objects.start()
            await self._synced()
            complete = await self.loop.once()
        finally:
            await self.objects.stop()
            for client in (self.client, self.lease_client):
                await client.close()
        out.write(printed(self.planned))
        return 0 if complete else 1

    async def _synced(self) -> None:
        await caches_synced(self.objects, self.parts.clock, self.registry)

    async def _deschedule(self) -> None:
        try:
            for profile in self.profiles:
                await profile.start()
            if self.drains is not None:
                await self.drains.start()
            self.leading = True
            await self.loop.run()
        finally:
            self.leading = False
            if self.drains is not None:
                await self.drains.stop()
            for profile in reversed(self.profiles):
                await profile.stop()

    # Pages

    def _serve(self) -> None:
        configuration = self.settings.configuration
        addresses = dict.fromkeys((configuration.healthz_bind_address, configuration.metrics_bind_address))
        for address in addresses:
            host, port = hosts_and_ports(address)
            if port:
                # Pages accept PUT /debug/flags and show the configuration: without authorization only locally.
                self.servers.append(self.pages.server(address, self._routes() if is_local(host) else []))
        certificate = self._certificate
        if certificate is not None:
            gate = delegated_auth(self.lease_client, self.options)
            routes = [*self._routes(), *(pprof.routes() if configuration.enable_profiling else [])]
            address = host_and_port(self.options.bind_address, self.options.secure_port)
            self.servers.append(self.pages.server(address, routes, certificate.context, (gate.middleware,)))
            self.runner.add(reloaded(certificate, self.parts.clock, self.registry))
        for server in self.servers:
            self.runner.add(server)

    def _routes(self) -> list[web.RouteDef]:
        routes = [*configz(shown(self.settings)), reset_route(self.registry)]
        routes += drain_routes(self.drains.book) if self.drains else []
        if self.settings.configuration.enable_profiling:
            routes += debug_flags({"v": integer("klog verbosity", set_verbosity)})
        return routes
