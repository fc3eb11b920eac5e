"""The latest figures as Prometheus rows (spec 02 §10) and as `/top`. Formats only; nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import isnan

import numpy as np

from koordlet.api.pages.interference import Brief
from koordlet.api.pages.top import FeatureState, SchedLatency, Top, TopCulprit, TopPressure, TopRow
from koordlet.app.exposition import Tails
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.labels import Row, container_labels, culprit_labels, subject_labels
from koordlet.metricsadvisor.stalls.attribution import CulpritTime, SubjectNaming, sum_rows, top_culprits
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS, exported
from koordlet.metricsadvisor.stalls.counters import CulpritCounters, MonotonicTable
from koordlet.metricsadvisor.usage.pressure import AVERAGES, WIRE, PressureReading
from koordlet.probes.columns import Ints
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.openprobes import ProbeSet
from koordlet.prometheus import Groups, Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind
from koordlet.system.host import HostFacts

CULPRITS_SHOWN = 5
"""Culprits of a row of `/top`."""


@cache
def _psi_labels(*full_supported: bool) -> Tails:
    """psi_resource_type, psi_precision, psi_degree, cpu_full_supported of each of `AVERAGES`. Despite its name the last
    label is the resource's own (spec 02 §5.13)."""
    texts = ["true" if supported else "false" for supported in full_supported]
    supported_of = dict(zip(WIRE, texts, strict=True))
    return tuple(
        (WIRE[resource], precision, degree, supported_of[resource]) for resource, degree, precision in AVERAGES
    )


class Views:
    """Attaches the collectors' figures to the registries, and builds `/top`."""

    def __init__(
        self,
        advisor: MetricsAdvisor,
        cache: MetricCache,
        registries: Registries,
        probes: ProbeSet,
        facts: HostFacts,
        *,
        open_files: Callable[[], int],
        verdicts: Callable[[str], list[Brief]] = lambda _: [],
    ) -> None:
        self._advisor = advisor
        self._probes = probes
        self._facts = facts
        self._verdicts = verdicts
        self._sums: dict[str, MonotonicTable] = {}
        self._culprit_rows: tuple[CulpritMatrix, Mapping[str, list[TopCulprit]]] | None = None
        """Of the last matrix that /top showed."""
        self._culprit_counters = CulpritCounters()
        view = registries.view
        view("node_used_cpu_cores", lambda: self._node("cores"))
        view("node_stolen_cpu_cores", lambda: self._node("stolen"))
        view("node_used_memory_bytes", lambda: self._node("memory"))
        view("system_cpu_usage_cores", lambda: self._system("cores"))
        view("system_memory_usage_bytes", lambda: self._system("memory"))
        view("be_suppress_be_used_cpu_cores", self._best_effort)
        view("qos_cpu_usage_cores", lambda: self._qos("cores"))
        view("qos_memory_usage_bytes", lambda: self._qos("memory"))
        for kind, name in ((SubjectKind.CONTAINER, "container"), (SubjectKind.POD, "pod")):
            view(f"{name}_cpu_usage_cores", lambda kind=kind: self._use(kind, "cores"))
            view(f"{name}_memory_usage_bytes", lambda kind=kind: self._use(kind, "memory"))
            view(f"{name}_psi", lambda kind=kind: self._psi(kind), grouped=4)
        view("container_cpu_throttled_ratio", lambda: self._use(SubjectKind.CONTAINER, "throttled"))
        view("host_application_resource_usage", self._host_apps)
        view("sched_latency_seconds", self._latency_histograms, BUCKET_BOUNDS)
        view("sched_latency_wait_seconds_total", lambda: self._latency_sums("sum_ns"))
        view("sched_latency_throttled_seconds_total", lambda: self._latency_sums("throttled_ns"))
        view("sched_latency_culprit_wait_seconds_total", self._culprits)
        view("sched_latency_lost_total", self._lost)
        view("probe_up", self._probe_states)
        view("host_feature_supported", self._features)
        view("metric_cache_bytes", lambda: [((), cache.nbytes)])
        view("metric_cache_series", lambda: [((name,), len(list(ring.keys))) for name, ring in cache.rings.items()])
        view("metric_cache_lost_samples_total", lambda: [((), cache.lost)])
        view("pods", self._pods)
        view("cgroup_files_open", lambda: [((), open_files())])

    @property
    def _pressure_reading(self) -> PressureReading | None:
        return None if self._advisor.pressure is None else self._advisor.pressure.reading

    def _node(self, member: str) -> list[Row]:
        usage = self._advisor.use.snapshot
        return [] if usage is None or usage.node is None else [((), getattr(usage.node, member))]

    def _system(self, member: str) -> list[Row]:
        usage = self._advisor.use.snapshot
        return [] if usage is None or usage.system is None else [((), getattr(usage.system, member))]

    def _best_effort(self) -> list[Row]:
        usage = self._advisor.use.snapshot
        if usage is None or usage.best_effort is None or usage.best_effort.usage is None:
            return []
        return [((), usage.best_effort.usage / 1000)]

    def _qos(self, member: str) -> list[Row]:
        usage = self._advisor.use.snapshot
        return [] if usage is None else [((qos,), getattr(use, member)) for qos, use in usage.qos.items()]

    def _use(self, kind: SubjectKind, member: str) -> Iterator[Row]:
        usage = self._advisor.use.snapshot
        if usage is None:
            return
        for subject, value in zip(usage.workloads.subjects, getattr(usage.use, member).tolist(), strict=True):
            if subject.kind is kind and not isnan(value):
                yield subject_labels(kind, subject), value

    def _host_apps(self) -> Iterator[Row]:
        usage = self._advisor.use.snapshot
        if usage is None:
            return
        for row, subject in enumerate(usage.workloads.subjects):
            if subject.kind is SubjectKind.HOST_APP:
                for resource, column in (("cpu", usage.use.cores), ("memory", usage.use.memory)):
                    if not isnan(column[row]):
                        yield (subject.name, resource, subject.priority_class, subject.qos), float(column[row])

    def _psi(self, kind: SubjectKind) -> Groups:
        reading = self._pressure_reading
        if reading is None:
            return
        averages = reading.table_of(AVERAGES).tolist()
        supported = np.stack([reading.full_supported(resource) == 1 for resource in WIRE], axis=1).tolist()
        for row in reading.workloads.rows[kind]:
            yield subject_labels(kind, reading.workloads.subjects[row]), _psi_labels(*supported[row]), averages[row]

    def _by_subject(self, column: str) -> tuple[list[Subject], Ints]:
        """A column of the cumulative snapshot, one row per container, as monotonic counters."""
        snapshot = self._advisor.sched_latency.latest
        if snapshot is None:
            return [], np.zeros(0, dtype=np.int64)
        subjects, rows = self._advisor.sched_latency.subjects_of(snapshot.keys)
        sums = sum_rows(getattr(snapshot, column), rows, len(subjects))
        shown = [row for row, subject in enumerate(subjects) if subject.kind is not SubjectKind.POD]
        subjects = [subjects[row] for row in shown]
        counters = self._sums.setdefault(column, MonotonicTable())
        return subjects, counters.update([subject.key for subject in subjects], sums[shown])

    def _latency_histograms(self) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        """A container that never waited for a reason has no histogram for it."""
        for reason, hist, total in (
            ("wakeup", "wakeup_hist", "wakeup_sum_ns"),
            ("preempted", "preempt_hist", "preempt_sum_ns"),
        ):
            subjects, counts = self._by_subject(hist)
            sums = self._by_subject(total)[1].tolist()
            for subject, cumulative, ns in zip(subjects, exported(counts), sums, strict=True):
                if cumulative[-1]:
                    yield (*container_labels(subject), subject.qos, reason), cumulative, ns / 1e9

    def _latency_sums(self, column: str) -> list[Row]:
        subjects, sums = self._by_subject(column)
        return [((*container_labels(s), s.qos), ns / 1e9) for s, ns in zip(subjects, sums.tolist(), strict=True)]

    def _culprits(self) -> Iterator[Row]:
        subjects = {s.key: s for s in self._advisor.workloads.subjects if s.kind is not SubjectKind.POD}
        naming = SubjectNaming(self._advisor.index.owner, subjects)
        table = self._advisor.sched_latency.matrix_by_subject(naming)
        if table is None:
            return
        for victim, culprit, waited in self._culprit_counters.update(table):
            subject = subjects[victim]
            yield (*container_labels(subject), subject.qos, *culprit_labels(culprit)), waited

    def _lost(self) -> list[Row]:
        snapshot = self._advisor.sched_latency.latest
        if snapshot is None:
            return []
        lost = snapshot.lost
        return [
            (("matrix",), lost.matrix_lost_count),
            (("cgroups",), lost.slot_lost),
            (("stamps",), lost.unstamped + lost.forgotten),
        ]

    def _probe_states(self) -> list[Row]:
        return [
            ((name, status.source, status.reason), float(status.loaded)) for name, status in self._probes.status.items()
        ]

    def _features(self) -> list[Row]:
        return [((name, feature.reason), float(bool(feature))) for name, feature in self._facts.features.items()]

    def _pods(self) -> list[Row]:
        counts: dict[str, int] = {}
        for pod in self._advisor.workloads.pods.values():
            counts[pod.qos] = counts.get(pod.qos, 0) + 1
        return [((qos,), count) for qos, count in counts.items()]

    def top(self, node: str, now: float) -> Top:
        """The page `/top`, as `koordctl top` shows it."""
        usage = self._advisor.use.snapshot
        use = usage.node if usage is not None else None
        system = usage.system if usage is not None else None
        return Top(
            node=node,
            at=now,
            cpus=len(self._facts.online_cpus),
            cpu=None if use is None else use.cores,
            memory=None if use is None else use.memory,
            memory_total=None if use is None else use.memory_total,
            system_cpu=None if system is None else system.cores,
            system_memory=None if system is None else system.memory,
            window=self._advisor.sched_latency.window.seconds,
            probes=[
                FeatureState(name=name, up=status.loaded, source=status.source, reason=status.reason)
                for name, status in self._probes.status.items()
            ],
            conditions=[
                FeatureState(name=name, up=False, reason=reason) for name, reason in self._facts.reasons().items()
            ],
            rows=[] if usage is None else list(self._top_rows()),
        )

    def _top_rows(self) -> Iterator[TopRow]:
        usage = self._advisor.use.snapshot
        if usage is None:
            return
        culprits = self._top_culprits()
        stalls = {} if self._advisor.pressure is None else self._advisor.pressure.stalls
        stalled = [stalls.get((resource, "some"), {}) for resource in ("cpu", "memory", "io")]
        cores, memory, throttled = (
            column.tolist() for column in (usage.use.cores, usage.use.memory, usage.use.throttled)
        )
        for row, subject in enumerate(usage.workloads.subjects):
            if subject.kind in (SubjectKind.POD, SubjectKind.QOS):
                continue
            yield TopRow(
                kind=subject.kind.value,
                namespace=subject.namespace,
                pod=subject.pod_name,
                name=subject.name,
                id=subject.key,
                qos=subject.qos,
                priority=subject.priority_class,
                cpu=_known(cores[row]),
                memory=_known(memory[row]),
                throttled=_known(throttled[row]),
                pressure=_pressure(subject.key, stalled),
                sched=self._sched(subject.key, culprits),
                verdicts=self._verdicts(subject.key),
            )

    def _top_culprits(self) -> Mapping[str, list[TopCulprit]]:
        """Subject key -> its culprits; made once per culprit matrix."""
        window = self._advisor.sched_latency.culprits()
        if window is None:
            return {}
        if self._culprit_rows is None or self._culprit_rows[0] is not window[0]:
            top = top_culprits(window[0], self._advisor.index.owner, CULPRITS_SHOWN)
            rows = {key: _culprits(culprits, total, window[1]) for key, (culprits, total) in top.items()}
            self._culprit_rows = window[0], rows
        return self._culprit_rows[1]

    def _sched(self, key: str, culprits: Mapping[str, list[TopCulprit]]) -> SchedLatency | None:
        latency = self._advisor.sched_latency.figures.get(key)
        if latency is None:
            return None
        return SchedLatency(
            p50=latency.p50,
            p99=latency.p99,
            wait=latency.wait,
            throttled=latency.throttled,
            count=latency.count,
            culprits=culprits.get(key, []),
        )


def _culprits(culprits: Sequence[CulpritTime], total: float, seconds: float) -> list[TopCulprit]:
    """`total`: the time of all culprits, also of those that are not in `culprits`."""
    return [
        TopCulprit(
            kind=culprit.owner.kind,
            namespace=culprit.owner.namespace,
            pod=culprit.owner.pod,
            name=culprit.owner.name,
            qos=culprit.owner.qos,
            share=culprit.seconds / total,
            wait=culprit.seconds / seconds,
        )
        for culprit in culprits
    ]


def _pressure(key: str, stalled: Sequence[Mapping[str, float]]) -> TopPressure | None:
    """`stalled`: subject key -> share of time, for each field of `TopPressure`."""
    cpu, memory, io = [of.get(key) for of in stalled]
    return None if cpu is None and memory is None and io is None else TopPressure(cpu=cpu, memory=memory, io=io)


def _known(value: float) -> float | None:
    return None if value != value else value
