"""The process: it starts pages, then caches, then leader election, then scheduling (spec 05 §1.3).

No decision is made before every store is complete: a node whose pods are not all known looks emptier than it is. When
the lease is lost, the process exits with status 1. Bindings in progress have reached the API server, or the next leader
decides again.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import replace

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from control.component import configfile
from control.component.certificate import reloaded, secure_certificate
from control.component.connection import client_config, delegated_auth
from control.component.election import lead, lease_elector
from control.component.metricsreset import reset_route
from control.component.pages import (
    ComponentPages,
    boolean,
    configz,
    debug_flags,
    host_and_port,
    integer,
    set_verbosity,
)
from control.component.startup import StartupStep, caches_synced
from control.scheduler.config.load import SchedulerSettings, load, shown
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.process import podresources
from control.scheduler.process.assembly import Assembly
from control.scheduler.process.kubernetesgates import split_gates
from control.scheduler.process.metrics import FeatureGateMetrics
from control.scheduler.process.options import SchedulerOptions
from control.scheduler.process.profiles import KNOWN_PLUGINS, implements
from control.scheduler.process.services import Services
from control.scheduler.process.syncbarrier import SyncBarrier
from koordlet.api.core import Pod
from koordlet.api.gates import SCHEDULER
from koordlet.app import pprof
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.flags import unused
from koordlet.app.gates import FeatureGates
from koordlet.app.health import HealthChecks
from koordlet.app.http import HttpServer
from koordlet.app.logging import get_logger
from koordlet.app.runner import Runner
from koordlet.app.servertls import ServerCertificate
from koordlet.app.version import user_agent
from koordlet.kube import Client, ClientConfig, EventRecorder
from koordlet.kube.delegated import DelegatedAuth
from koordlet.kube.serverversion import ServerVersionCheck

log = get_logger(__name__)

COMPONENT = "koord-scheduler"
MAX_QUEUED_EVENTS = 10_000
"""Kubernetes Events that wait to be sent, about 1 KB each. Every placement creates one."""
EVENT_SENDERS = 8

_SUPPORTED_GATES = frozenset(
    (
        "DevicePluginAdaption",
        "DynamicSchedulerCheck",
        "ResizePod",
        "SkipFilterWithNominatedPods",
        "OmitNodeLabelsForReservation",
        "SkipReservationFitsNode",
        "PriorityTransformer",
        "PreemptionPolicyTransformer",
        "ReplaceResourcesTransformer",
        "GangPendingPodsConditionPatch",
        "EnableInlineBatchSchedule",
        "SyncBarrier",
        "MultiQuotaTree",
        "DisableDefaultQuota",
        "ElasticQuotaGuaranteeUsage",
        "ElasticQuotaIgnorePodOverhead",
        "ElasticQuotaIgnoreTerminatingPod",
        "ElasticQuotaImmediateIgnoreTerminatingPod",
        "CrossSchedulerNomination",
        "CleanExpiredReservationAllocated",
        "SupportParentQuotaSubmitPod",  # always the case here; koord-manager's gate decides about admission
    )
)
"""Feature gates that this build uses."""


def read_settings(options: SchedulerOptions) -> SchedulerSettings:
    """The configuration file with the flags applied. Raises ConfigurationError."""
    settings = load(configfile.read_file(options.config), PLUGINS, implements, KNOWN_PLUGINS)
    configfile.apply_lease_flags(settings.configuration.leader_election, options)
    connection = settings.configuration.client_connection
    connection.kubeconfig = options.kubeconfig or connection.kubeconfig
    connection.qps = options.kube_api_qps or connection.qps
    connection.burst = options.kube_api_burst or connection.burst
    return settings


def write_configuration(options: SchedulerOptions) -> None:
    """`--write-config-to`. Raises ConfigurationError."""
    configfile.write_file(shown(read_settings(options)), options.write_config_to)


class Scheduler:
    """`run()` serves until a signal and returns the exit status."""

    def __init__(
        self, options: SchedulerOptions, *, config: ClientConfig | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Raises ConfigurationError, GateError, ConfigError for unusable settings."""
        self.options = options
        self.settings = read_settings(options)
        self.gates = gates = FeatureGates(SCHEDULER)
        own_gates, foreign_gates = split_gates(options.feature_gates)
        gates.set(own_gates)
        self._gates_without_effect = sorted({*foreign_gates, *(own_gates.keys() - _SUPPORTED_GATES)})
        self.registry = CollectorRegistry()
        self.runner = Runner(clock=clock)
        self.health = HealthChecks()
        config = client_config(config, self.settings.configuration.client_connection, options, COMPONENT)
        self.client = Client(config, clock=clock, registry=self.registry)
        # Separate rate limits: thousands of bindings must not delay the lease, and Events must not delay bindings.
        self.lease_client = Client(replace(config, qps=0), clock=clock, registry=self.registry)
        self.event_client = Client(config, clock=clock, registry=self.registry)
        self.gate = self._gate(replace(config, qps=0))
        self._certificate = secure_certificate(options)
        self.pages = ComponentPages(self.registry, self.health)
        instance = f"{COMPONENT}-{socket.gethostname()}"
        self.events = EventRecorder(
            self.event_client, COMPONENT, instance, queue=MAX_QUEUED_EVENTS, senders=EVENT_SENDERS, series=True
        )
        self.assembly = Assembly(self.settings, options, gates, self.client, self.events, self.registry)
        self.elector = lease_elector(
            self.lease_client, self.settings.configuration.leader_election, self.registry, self.health
        )
        self.leading = False
        self.server: HttpServer | None = None
        FeatureGateMetrics(self.registry, gates)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    async def run(self) -> int:
        """Start everything, schedule until a signal or a failure, stop everything."""
        runner, objects = self.runner, self.assembly.objects
        for client in (self.client, self.lease_client, self.event_client, self.gate_client):
            runner.add_stop("api-client", client.close)
        if self.options.port:
            address = self.options.address
            # Pages show pods with their environment and accept PUT /debug/flags: without authorization only locally.
            routes = self._routes() if ipaddress.ip_address(address or "0.0.0.0").is_loopback else []
            self.server = self.pages.server(host_and_port(address, self.options.port), routes)
            runner.add(self.server)
        if self._certificate is not None:
            runner.add(self._secure_pages(self._certificate))
        version = ServerVersionCheck(self.client)
        self.health.check(version.name, lambda: version.problem)
        runner.add(version)
        runner.add(self.events)
        if not self.settings.configuration.delay_cache_until_active:
            runner.add(objects)
            runner.add(StartupStep("caches-synced", self._synced))
        runner.spawn("scheduling", lambda: lead(self.elector, self._schedule))
        log.info("Starting koord-scheduler", profiles=",".join(self.assembly.frameworks))
        for gate in self._gates_without_effect:
            log.warning("Feature gate has no effect in this build", gate=gate)
        for name in unused(self.options):
            log.warning("Flag has no effect in this build", flag=f"--{name}")
        return await runner.run()

    async def _schedule(self) -> None:
        if self.settings.configuration.delay_cache_until_active:
            self.runner.add_stop("informers", self.assembly.objects.stop)
            await self.assembly.objects.start()
            await self._synced()
        elif self.elector is not None and self.gates.enabled("SyncBarrier"):
            await self._barrier().passed()
        self.leading = True
        try:
            await self.assembly.schedule()
        finally:
            self.leading = False

    async def _synced(self) -> None:
        await caches_synced(self.assembly.objects, self.client.clock, self.registry)

    def _barrier(self) -> SyncBarrier:
        options, pods, counted = self.options, self.assembly.objects.informer(Pod), self.assembly.cache.pods

        def version(uid: str) -> str | None:
            info = counted.get(uid)
            return info.version if info is not None and not info.assumed else None

        return SyncBarrier(
            self.lease_client,
            options.sync_barrier_pod_namespace,
            options.sync_barrier_pod_name,
            self.settings.configuration.leader_election.resource_name,
            get=pods.get,
            pods=pods.list,
            counted=version,
            timeout=options.sync_hard_timeout,
        )

    def _secure_pages(self, certificate: ServerCertificate) -> HttpServer:
        """All pages over TLS, for authorized callers, and profiles."""
        self.runner.add(reloaded(certificate, self.client.clock, self.registry))
        options, profiles = self.options, pprof.routes() if self._profiling else []
        address = host_and_port(options.bind_address, options.secure_port)
        return self.pages.server(address, [*self._routes(), *profiles], certificate.context, (self.gate.middleware,))

    @property
    def _profiling(self) -> bool:
        return self.settings.configuration.enable_profiling and self.options.profiling

    def _gate(self, config: ClientConfig) -> DelegatedAuth:
        """Authentication and authorization of callers of the secure port. Raises ConfigError."""
        options = self.options
        kubeconfig = options.authentication_kubeconfig or options.authorization_kubeconfig
        if kubeconfig:
            config = replace(ClientConfig.load(kubeconfig), user_agent=user_agent(COMPONENT))
        self.gate_client = Client(config, clock=self.client.clock, registry=self.registry)
        return delegated_auth(self.gate_client, options)

    def _routes(self) -> list[web.RouteDef]:
        assembly = self.assembly
        services = Services(assembly.table, assembly.plugins.values(), lambda: self.leading, assembly.lookup.explain)
        pods = assembly.objects.informer(Pod)
        routes = [
            *configz(shown(self.settings)),
            reset_route(self.registry),
            *services.routes(),
            *podresources.routes(pods.list, lambda: self.leading),
        ]
        if self._profiling:
            debug = assembly.debug
            routes += debug_flags(
                {
                    "v": integer("klog verbosity", set_verbosity),
                    "s": integer("debugTopNScores", debug.set_scores),
                    "f": boolean("debugFilterFailure", self._log_failures),
                    "d": boolean("debugDiagnosis", debug.set_diagnoses),
                    "db": boolean("debugDiagnosisBlocking", debug.set_blocking),
                }
            )
        return routes

    def _log_failures(self, on: bool) -> None:
        self.assembly.reporter.log_failures = on
