"""koordlet, wired: what is made of what, in which order it starts, and what a failure of it means.

    kernel files, BPF tables -> TickReader, ProbeSet -> MetricsAdvisor -> MetricCache -> NodeMetricReporter
    API server, kubelet      -> KubeStates (or LocalStates) ---^             '-> Views: Prometheus, /top

Nothing waits for an optional part: a kernel without a feature, a missing NodeSLO or a kubelet that is away are
conditions (/readyz, metrics, /top), and the rest goes on (spec 02 §1.2). Stop order is the reverse of start order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from koordlet.api.gates import KOORDLET
from koordlet.api.wire import encode
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.gates import FeatureGates
from koordlet.app.health import Health
from koordlet.app.http import Server
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.app.runner import Runner
from koordlet.audit import Auditor, LogAuditor, NullAuditor, node
from koordlet.audit.api import SWEEP_SECONDS, Readers, events_handler, no_events
from koordlet.audit.logfile import FLUSH_SECONDS, AuditLog
from koordlet.interference.assembly import SECONDS, Interference, evidence_from
from koordlet.kube import Client, Config, EventRecorder
from koordlet.kube.credentials import TokenFile
from koordlet.metriccache import MetricCache
from koordlet.metriccache.snapshot import SnapshotError, load, save
from koordlet.metrics import Registries
from koordlet.metrics.registries import Rows
from koordlet.metricsadvisor.advisor import FACT_CPU, FACT_NUMA, MetricsAdvisor, boot_clock
from koordlet.metricsadvisor.allgroups import AllGroups
from koordlet.metricsadvisor.blockio import BlockIOCollector
from koordlet.metricsadvisor.capacity import attach_capacity
from koordlet.metricsadvisor.memstall import MemStallCollector
from koordlet.metricsadvisor.netstall import NetStallCollector
from koordlet.metricsadvisor.nodefacts import FACT_BASIC
from koordlet.metricsadvisor.oom import OomCollector
from koordlet.metricsadvisor.optional import Intervals, OptionalCollectors
from koordlet.metricsadvisor.reader import TickReader
from koordlet.metricsadvisor.views import Views
from koordlet.options import Options
from koordlet.prediction.checkpoints import CheckpointDirectory
from koordlet.prediction.models import Models, PeakModel
from koordlet.prediction.service import SETTLE_TICKS, UPKEEP_SECONDS, NodeView, PredictionService, Settings
from koordlet.probes.openprobes import ProbeSet, open_probes
from koordlet.statesinformer.callbacks import StateType
from koordlet.statesinformer.cgroupindex import CgroupIndex
from koordlet.statesinformer.kubelet import REQUEST_BUCKETS, KubeletClient
from koordlet.statesinformer.model import PodMeta, Workloads
from koordlet.statesinformer.nodemetric import MIN_REPORT_SECONDS, Extensions
from koordlet.statesinformer.nrt import TopologyReporter
from koordlet.statesinformer.nrtstatus import Machine
from koordlet.statesinformer.pleg import Pleg
from koordlet.statesinformer.pods import PodsInformer
from koordlet.statesinformer.prompt import Prompt
from koordlet.statesinformer.reporter import CHECK_SECONDS, NodeMetricReporter
from koordlet.statesinformer.resourceviews import ResourceViews
from koordlet.statesinformer.states import KubeStates, LocalStates, States
from koordlet.statesinformer.taskids import task_ids
from koordlet.system import kidled
from koordlet.system.cgroup import cgroup_id, tree
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.errors import CgroupGone
from koordlet.system.host import Host
from koordlet.system.naming import CgroupDriver, detect_driver, kubepods_dir
from koordlet.system.write import WriteError, write_value
from koordlet.version import VERSION

log = get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SNAPSHOT_MAX_AGE = 1800.0
FIRST_SAMPLE_SECONDS = 0.2
"""A rate takes two readings; the second one need not wait for the tick."""


class Daemon:
    """One koordlet. `run` returns the process's exit status."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.gates = FeatureGates(KOORDLET)
        self.gates.set({"PSICollector": True})  # on unless named: docs/decisions.md
        self.gates.set(options.feature_gates)
        self.host = Host(options.roots())
        self.registries = Registries()
        self.registries.view("start_time", lambda started=time.time(): [((), started)])
        self.health, self.runner = Health(), Runner()
        self.cache = MetricCache(
            tick=options.collect_res_used_interval,
            max_rows=options.metric_cache_max_series,
            max_seconds=options.tsdb_retention_duration,
            max_bytes=options.tsdb_max_bytes,
        )
        self.files = CgroupFS(self.host, kube_root=self._kube_root())
        self.auditor: Auditor = NullAuditor()
        self._routes: list[web.RouteDef] = []
        self.pleg = Pleg(Path(self.files.hierarchy("cpu")))
        self._events: EventRecorder | None = None
        """None without an API server."""
        self.reporter: NodeMetricReporter | None = None
        """None where nothing is reported; its `extensions` are what others add to NodeMetric."""
        self.optional: OptionalCollectors | None = None
        """Collectors by gate and flag, once the advisor is made."""
        self.mem_stall: MemStallCollector | None = None
        self.oom: OomCollector | None = None
        self.block_io: BlockIOCollector | None = None
        self.net_stall: NetStallCollector | None = None
        self._snapshot = Path(options.state_dir) / "metrics.npz"
        self._boot_id = (self.host.roots.proc / "sys/kernel/random/boot_id").read_text().strip()

    async def run(self) -> int:
        """Start everything, serve until a signal, stop everything."""
        self._say_conditions()
        self._audit()
        states: States
        if self.options.standalone:
            states = self._local()
        else:
            states = self._kube()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a stop between two pins would leave them behind
        probes = self._probes()
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            advisor = self._advisor(states, probes)
            interference = self._interference(states, advisor)
            views = Views(
                advisor,
                self.cache,
                self.registries,
                probes,
                self.host.facts,
                open_files=lambda: self.files.cache.stats.open_fds,
                verdicts=interference.views.briefs,
            )
            attach_capacity(self.registries, advisor)
            self.pleg.attach(self.registries)
            self.runner.add(self.pleg)
            self._serve(views)
            self._snapshots()
            log.info("koordlet starts", version=VERSION, node=self.registries.node or self.options.node_name)
            return await self.runner.run()
        finally:
            probes.close(keep=self.options.keep_pins)

    # --- where the picture comes from

    def _local(self) -> States:
        root = self.files.hierarchy("cpu")
        states = LocalStates(lambda: tree.walk(root))
        states.refresh()
        self.registries.node = self.options.node_name or os.uname().nodename
        task = self._periodic("discover", self.options.discover_interval, states.refresh)
        self.pleg.add_handler(self._prompt(task).on_any)
        self.runner.add(task)
        return states

    def _kube(self) -> States:
        options = self.options
        config = Config.load(
            options.kubeconfig or None,
            user_agent="koordlet",
            qps=options.kube_api_qps,
            burst=options.kube_api_burst,
        )
        client = Client(config, registry=self.registries.internal)
        states = KubeStates(
            client,
            options.node_name,
            found_driver=lambda: detect_driver(Path(self.files.hierarchy("cpu"))),
            address_type=options.kubelet_preferred_address_type,
            insecure=options.kubelet_insecure_tls,
            read_only_port=options.kubelet_read_only_port,
        )
        duration = self.registries.histogram("kubelet_request_duration_seconds", REQUEST_BUCKETS)
        kubelet = KubeletClient(
            states.endpoint, self._kubelet_headers(config), timeout=options.kubelet_sync_timeout, duration=duration
        )
        pods = states.ask(kubelet, self._task_ids if options.enable_pod_taskids else None)
        states.node.add_handler(on_add=lambda node: setattr(self.registries, "node", node.metadata.name))
        self.runner.add_stop("kube client", client.close)
        self.runner.add_stop("kubelet client", kubelet.close)
        self._events = EventRecorder(client, "koordlet", options.node_name)
        self.runner.add(self._events)
        for informer in (states.node, states.node_slo, states.node_metric):
            self.health.check(f"informer:{informer.name}", lambda informer=informer: informer.problem)  # type: ignore[misc]
            self.runner.add(informer)
        self.health.check("pods", lambda: pods.error or None)
        task = self._periodic("pods", options.kubelet_sync_interval, states.sync_pods)
        self.pleg.add_handler(self._prompt(task).on_kubelet_pods)
        self.runner.add(task)
        states.callbacks.attach(self.registries)
        self.runner.add(states.callbacks)
        ResourceViews(states, self.registries)
        if options.enable_node_metric_report:
            self._report(client, states)
        if options.node_topology_sync_interval > 0:
            self._topology(client, states, kubelet, pods)
        return states

    def _task_ids(self, meta: PodMeta, driver: CgroupDriver) -> Mapping[str, tuple[int, ...]]:
        cpuset = self.files.hierarchy("cpuset")
        return task_ids(meta, driver, lambda directory: tree.children(cpuset, directory), self.files.tasks)

    def _prompt(self, task: Periodic) -> Prompt:
        prompt = Prompt(task.trigger)
        self.runner.add_stop(f"prompt {task.name}", prompt.close)
        return prompt

    def _report(self, client: Client, states: KubeStates) -> None:
        prediction = self._predict(states)
        reporter = self.reporter = NodeMetricReporter(
            client,
            states,
            self.cache,
            self.registries,
            clock=boot_clock,
            wall=SYSTEM_CLOCK.now,
            forecast=prediction.forecast,
            mirror=self.gates.enabled("NodeMetricPromMetrics"),
        )

        async def report() -> None:
            task.period = states.policy.report_seconds  # read anew each round (spec 02 §7.2)
            await reporter.report()

        task = self._periodic("report-node-metric", MIN_REPORT_SECONDS, report, immediate=False)
        states.node_metric.add_handler(
            on_add=lambda _: setattr(task, "period", states.policy.report_seconds),
        )
        self.runner.add(task)
        self.runner.add(self._periodic("check-prediction", CHECK_SECONDS, reporter.check, immediate=False))

    def _predict(self, states: KubeStates) -> PredictionService:
        options = self.options
        service = PredictionService(
            self.cache,
            NodeView(
                workloads=lambda: states.workloads if states.pods is not None and states.pods.synced else None,
                node=lambda: states.node.object,
                memory_policy=lambda: states.policy.memory,
            ),
            Models(
                cpu_half_life=options.prediction_cpu_histogram_decay_halflife,
                memory_half_life=options.prediction_memory_histogram_decay_halflife,
                peak=PeakModel(options.prediction_peak_model),
                sigmas=options.prediction_sigmas,
            ),
            CheckpointDirectory(Path(options.prediction_checkpoint_filepath)),
            Settings(
                training_interval=options.prediction_training_interval,
                cold_start=options.prediction_cold_start_duration,
                margin=options.prediction_safety_margin_percent,
                expiration=options.prediction_model_expiration_duration,
                checkpoint_interval=options.prediction_model_checkpoint_interval,
                checkpoints_per_step=options.prediction_model_checkpoint_max_per_step,
                settle=SETTLE_TICKS * options.collect_res_used_interval,
            ),
            self.registries,
            clock=boot_clock,
            wall=SYSTEM_CLOCK.now,
        )

        def learn() -> None:
            service.train()
            if service.trained:  # until then it looks often whether the first figures of pods are there
                training.period = options.prediction_training_interval

        training = self._periodic("train-prediction", 1.0, learn)
        self.runner.add_stop("prediction checkpoints", service.checkpoint_all)
        self.runner.add(training)
        for name, step in (("expire", service.collect_garbage), ("checkpoint", service.checkpoint)):
            self.runner.add(self._periodic(f"{name}-prediction", UPKEEP_SECONDS, step, immediate=False))
        return service

    def _topology(self, client: Client, states: KubeStates, kubelet: KubeletClient, pods: PodsInformer) -> None:
        options, facts = self.options, self.cache.facts

        def machine() -> Machine | None:
            cpus, basic, numa = facts.get(FACT_CPU), facts.get(FACT_BASIC), facts.get(FACT_NUMA)
            return None if cpus is None or basic is None or numa is None else Machine(cpus, basic, numa)

        reporter = TopologyReporter(
            client,
            options.node_name,
            node=lambda: states.node.object,
            pods=lambda: pods.pods.values() if pods.answered else None,
            machine=machine,
            kubelet=None if options.disable_query_kubelet_config else kubelet.config,
            kubelet_dir=self.host.roots.var_lib_kubelet,
            registries=self.registries,
            on_change=lambda: states.callbacks.trigger(StateType.NODE_TOPOLOGY),
            write=self.gates.enabled("NodeTopologyReport"),
            per_cpu=self.gates.enabled("PerCPUMetric"),
        )
        states.callbacks.source(StateType.NODE_TOPOLOGY, lambda: reporter.local)
        self.health.check("node-topology", lambda: reporter.problem)
        if self.gates.enabled("NodeTopologyReport"):
            self.health.check(f"informer:{reporter.stored.name}", lambda: reporter.stored.problem)
            self.runner.add(reporter.stored)
        self.runner.add(self._periodic("report-node-topology", options.node_topology_sync_interval, reporter.report))

    def _kubelet_headers(self, config: Config) -> Callable[[], Awaitable[Mapping[str, str]]]:
        path = self.options.kubelet_token_file
        if not path:
            return config.credentials.headers
        return TokenFile(Path(path)).headers

    # --- what is measured

    def _probes(self) -> ProbeSet:
        options = self.options
        probes = open_probes(
            self.host,
            options.probes,
            Path(options.bpf_pin_dir) if options.bpf_pin_dir else None,
            mount_bpffs=options.mount_bpffs,
        )
        for name, status in probes.status.items():
            log.info("probe", name=name, loaded=status.loaded, source=status.source, reason=status.reason)
        return probes

    def _advisor(self, states: States, probes: ProbeSet) -> MetricsAdvisor:
        options = self.options
        index = CgroupIndex(self._cgroup_ids)
        self.pleg.add_handler(lambda _: index.expire())
        advisor = MetricsAdvisor(
            self.host,
            self._reader(probes),
            lambda: states.workloads,
            self.cache,
            self.registries,
            probes=probes,
            index=index,
            latency_window=options.sched_latency_window,
            page_cache=options.enable_pagecache_collector,
            huge_pages=self.gates.enabled("HugePageReport"),
            outdated=options.collect_sys_metric_outdated_interval,
            pods_known=lambda: not isinstance(states, KubeStates) or (states.pods is not None and states.pods.answered),
        )
        advisor.read_node_info()
        self.health.check("metrics-advisor", lambda: None if advisor.started else "no first sample yet")
        self.optional = self._optional(advisor)
        cadences: tuple[tuple[str, float, Callable[[], object]], ...] = (
            ("collect-node-info", options.collect_node_cpu_info_interval, advisor.read_node_info),
            ("collect-use", options.collect_res_used_interval, advisor.tick),
            ("collect-sched-latency", options.sched_latency_interval, advisor.read_latency),
            *self.optional.cadences,
            *self._memory(advisor, probes),
            *self._io(advisor, probes),
        )
        for name, period, collect in cadences:
            self.runner.add(self._periodic(name, period, collect))

        async def second_reading() -> None:
            await asyncio.sleep(FIRST_SAMPLE_SECONDS)
            advisor.tick()

        self.runner.spawn("first-sample", second_reading, critical=False)
        return advisor

    def _optional(self, advisor: MetricsAdvisor) -> OptionalCollectors:
        options = self.options
        return OptionalCollectors(
            self.host,
            self.files,
            advisor,
            self.cache,
            self.registries,
            self.gates,
            Intervals(
                use=options.collect_res_used_interval,
                cpi=options.cpi_collector_interval,
                cpi_window=options.collect_cpi_timewindow,
                psi=options.psi_collector_interval,
                cold_pages=options.coldpage_collector_interval,
                cold_page_window=options.cold_page_window,
                resctrl=options.resctrl_collector_interval,
                storage=options.collect_node_storage_info_interval,
            ),
            resctrl_wanted=options.enable_resctrl_collector,
            enable_kidled=self._enable_kidled,
        )

    def _memory(self, advisor: MetricsAdvisor, probes: ProbeSet) -> list[tuple[str, float, Callable[[], object]]]:
        """Collectors of memory stalls and out-of-memory kills, and how often they run."""
        options, root = self.options, self.files.hierarchy("memory")
        same = root == self.files.hierarchy("cpu")
        limits = advisor.index if same else CgroupIndex(lambda: self._ids_below(root))

        def workloads() -> Workloads:
            return advisor.workloads

        self.mem_stall = MemStallCollector(
            probes.mem_stall,
            workloads,
            self.cache,
            self.registries,
            index=advisor.index,
            limits=limits,
            clock=boot_clock,
            window=options.mem_stall_window,
        )
        self.oom = OomCollector(
            probes.oom, workloads, self.registries, index=advisor.index, limits=limits, clock=boot_clock
        )
        return [
            ("collect-mem-stall", options.mem_stall_interval, self.mem_stall.read),
            ("collect-oom", options.oom_interval, self.oom.read),
        ]

    def _io(self, advisor: MetricsAdvisor, probes: ProbeSet) -> list[tuple[str, float, Callable[[], object]]]:
        """Collectors of block I/O and network stalls, and how often they run."""
        options = self.options

        def workloads() -> Workloads:
            return advisor.workloads

        self.block_io = BlockIOCollector(
            probes.block_io,
            workloads,
            self.cache,
            self.registries,
            index=advisor.index,
            sys=self.host.roots.sys,
            clock=boot_clock,
            window=options.block_io_window,
        )
        self.net_stall = NetStallCollector(
            probes.net_stall,
            workloads,
            self.cache,
            self.registries,
            index=advisor.index,
            clock=boot_clock,
            window=options.net_stall_window,
        )
        return [
            ("collect-block-io", options.block_io_interval, self.block_io.read),
            ("collect-net-stall", options.net_stall_interval, self.net_stall.read),
        ]

    def _enable_kidled(self) -> None:
        for name, value in kidled.ENABLE.items():
            try:
                write_value(self.host.roots.sys / "kernel/mm/kidled" / name, value)
            except WriteError as error:
                raise OSError(error.errno, str(error)) from error

    def _interference(self, states: States, advisor: MetricsAdvisor) -> Interference:
        interference = Interference(
            advisor,
            self.registries,
            evidence=evidence_from(
                mem_stall=self.mem_stall,
                block_io=self.block_io,
                net_stall=self.net_stall,
                cpi=self.optional.cpi if self.optional else None,
            ),
            node_slo=lambda: states.node_slo.object if isinstance(states, KubeStates) else None,
            auditor=self.auditor,
            recorder=self._events,
            clock=boot_clock,
            wall=SYSTEM_CLOCK.now,
        )
        if self.reporter is not None:
            said = interference.views
            self.reporter.extensions = Extensions(of_pod=said.pod_extension, of_node=said.node_extension)
        self._routes += interference.views.routes()
        self.runner.add(self._periodic("interference", SECONDS, interference.watch.step))
        return interference

    def _reader(self, probes: ProbeSet) -> TickReader:
        def distrust(cause: str) -> None:
            probes.status["cgroup_stats"] = replace(probes.status["cgroup_stats"], source="files", reason=cause)

        stats = probes.cgroup_stats if self.options.cgroup_stats == "auto" else None
        if stats is None:
            probes.drop("cgroup_stats", "files", "switched off")
            return TickReader(self.host, self.files)
        return TickReader(self.host, self.files, AllGroups(stats), distrust)

    def _cgroup_ids(self) -> Iterator[tuple[str, int]]:
        root = self.files.hierarchy("cpu")
        for path in tree.walk(root):
            try:
                yield path, self.files.cgroup_id(path)
            except CgroupGone:
                continue

    def _ids_below(self, root: str) -> Iterator[tuple[str, int]]:
        for path in tree.walk(root):
            try:
                yield path, cgroup_id(Path(root, path))
            except FileNotFoundError:
                continue

    # --- what is served and kept

    def _audit(self) -> None:
        options = self.options
        served = self.gates.enabled("AuditEventsHTTPHandler")
        if not self.gates.enabled("AuditEvents"):
            if served:
                self._routes.append(web.get("/events", no_events))
            return
        audited = AuditLog(Path(options.audit_log_dir), options.audit_max_disk_space_mb)
        self.auditor = LogAuditor(audited, options.audit_verbose)
        self.health.check("audit", lambda: audited.problem)

        def outcomes() -> Rows:
            return [(("written",), audited.written), (("dropped",), audited.dropped)]

        self.registries.view("audit_events_total", outcomes)
        self.registries.view("audit_written_bytes_total", lambda: [((), audited.bytes)])
        if served:
            readers = Readers(audited.directory, options.audit_max_concurrent_readers)
            handler = events_handler(readers, audited.flush, options.audit_max_events_limit)
            self._routes.append(web.get("/events", handler, allow_head=False))
            self.runner.add(self._periodic("audit-sweep", SWEEP_SECONDS, readers.sweep))

        async def last_event() -> None:
            self.auditor.record(3, node(), "KoordletStopped")
            audited.close()

        self.runner.add_stop("audit log", last_event)
        self.runner.add(self._periodic("audit-flush", FLUSH_SECONDS, audited.flush, immediate=False))
        self.auditor.record(3, node(), "KoordletStarted", f"version {VERSION}")

    def _serve(self, views: Views) -> None:
        async def top(_: web.Request) -> web.Response:
            picture = views.top(self.registries.node or self.options.node_name, SYSTEM_CLOCK.now())
            return web.Response(body=encode(picture), content_type="application/json")

        both = (self.registries.internal, self.registries.external)
        self.runner.add(
            Server(
                self.options.addr,
                registries={
                    "/internal-metrics": self.registries.internal,
                    "/external-metrics": self.registries.external,
                    "/metrics": both,
                },
                health=self.health,
                routes=[web.get("/top", top), *self._routes],
            )
        )

    def _snapshots(self) -> None:
        try:
            count = load(self.cache, self._snapshot, boot_clock(), self._boot_id, max_age=SNAPSHOT_MAX_AGE)
            log.info("metric cache restored", series=count)
        except SnapshotError as error:
            log.warning("metric cache starts empty", error=str(error))

        def write() -> None:
            save(self.cache, self._snapshot, boot_clock(), self._boot_id)

        async def last_write() -> None:
            write()

        self.runner.add_stop("metric snapshot", last_write)
        self.runner.add(self._periodic("metric-snapshot", self.options.snapshot_interval, write, immediate=False))

    # --- small things

    def _kube_root(self) -> str:
        mount = self.host.facts.cgroup_mounts.hierarchy("cpu")
        driver = detect_driver(mount) if mount is not None else None
        return kubepods_dir(driver) if driver is not None else ""

    def _periodic(self, name: str, period: float, fn: Callable[[], object], *, immediate: bool = True) -> Periodic:
        return Periodic(name, period, fn, immediate=immediate, registry=self.registries.internal)

    def _say_conditions(self) -> None:
        for feature, reason in self.host.facts.reasons().items():
            log.info("host lacks a feature", feature=feature, reason=reason)
