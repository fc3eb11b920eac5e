"""The latest picture as Prometheus rows (spec 02 §10) and as `/top`. Only formats; nothing is measured here."""

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
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS, exported
from koordlet.metricsadvisor.stalls.counters import CulpritCounters, SteadyTable
from koordlet.metricsadvisor.stalls.latency import Blame, longest, sum_rows
from koordlet.metricsadvisor.stalls.waiting import Waiting
from koordlet.metricsadvisor.usage.pressure import AVERAGES, WIRE
from koordlet.probes.loading.mapped import Ints
from koordlet.probes.openprobes import ProbeSet
from koordlet.prometheus import Groups, Registries
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject, SubjectKind
from koordlet.system.host import HostFacts

Row = tuple[tuple[str, ...], float]
CULPRITS_SHOWN = 5
CULPRITS_EXPORTED = 10
"""Culprits a victim exports at most; what the rest adds is counted under `other`."""


def container_labels(subject: Subject) -> tuple[str, ...]:
    """pod_uid, pod_name, pod_namespace, container_id, container_name"""
    return (subject.pod_uid, subject.pod_name, subject.namespace, subject.key, subject.name)


def pod_labels(subject: Subject) -> tuple[str, ...]:
    """pod_uid, pod_name, pod_namespace"""
    return (subject.pod_uid, subject.pod_name, subject.namespace)


def culprit_labels(who: Owner | None) -> tuple[str, ...]:
    """kind, namespace, pod, name; None are all culprits without a series of their own."""
    return ("other", "", "", "") if who is None else (who.kind, who.namespace, who.pod, who.name)


@cache
def _psi_labels(*full_supported: bool) -> Tails:
    """psi_resource_type, psi_precision, psi_degree, cpu_full_supported of each of `AVERAGES`; the last is the
    resource's own, whatever its name says (spec 02 §5.13)."""
    supported = {resource: "true" if one else "false" for resource, one in zip(WIRE, full_supported, strict=True)}
    return tuple((WIRE[resource], precision, degree, supported[resource]) for resource, degree, precision in AVERAGES)


class Views:
    """Attaches the advisor's figures to the registries and answers /top."""

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
        self._verdicts = verdicts
        self._advisor, self._cache, self._probes, self._facts = advisor, cache, probes, facts
        self._sums: dict[str, SteadyTable] = {}
        self._culprit_counters = CulpritCounters(CULPRITS_EXPORTED)
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

    # --- Prometheus rows

    def _node(self, member: str) -> list[Row]:
        picture = self._advisor.picture
        return [] if picture is None or picture.node is None else [((), getattr(picture.node, member))]

    def _system(self, member: str) -> list[Row]:
        picture = self._advisor.picture
        return [] if picture is None or picture.system is None else [((), getattr(picture.system, member))]

    def _best_effort(self) -> list[Row]:
        picture = self._advisor.picture
        if picture is None or picture.best_effort is None or picture.best_effort.usage is None:
            return []
        return [((), picture.best_effort.usage / 1000)]

    def _qos(self, member: str) -> list[Row]:
        picture = self._advisor.picture
        return [] if picture is None else [((qos,), getattr(use, member)) for qos, use in picture.qos.items()]

    def _use(self, kind: SubjectKind, member: str) -> Iterator[Row]:
        picture = self._advisor.picture
        if picture is None:
            return
        labels = container_labels if kind is SubjectKind.CONTAINER else pod_labels
        for subject, value in zip(picture.workloads.subjects, getattr(picture.use, member).tolist(), strict=True):
            if subject.kind is kind and not isnan(value):
                yield labels(subject), value

    def _host_apps(self) -> Iterator[Row]:
        picture = self._advisor.picture
        if picture is None:
            return
        for row, subject in enumerate(picture.workloads.subjects):
            if subject.kind is SubjectKind.HOST_APP:
                for resource, column in (("cpu", picture.use.cores), ("memory", picture.use.memory)):
                    if not isnan(column[row]):
                        yield (subject.name, resource, subject.priority_class, subject.qos), float(column[row])

    def _psi(self, kind: SubjectKind) -> Groups:
        reading = self._advisor.pressure
        if reading is None:
            return
        labels = container_labels if kind is SubjectKind.CONTAINER else pod_labels
        averages = reading.table_of(AVERAGES).tolist()
        supported = np.stack([reading.full_supported(resource) == 1 for resource in WIRE], axis=1).tolist()
        for row in reading.workloads.rows[kind]:
            yield labels(reading.workloads.subjects[row]), _psi_labels(*supported[row]), averages[row]

    def _by_subject(self, column: str) -> tuple[list[Subject], Ints]:
        """A column of the cumulative snapshot, a row a container, that never runs back."""
        snapshot = self._advisor.latency_window.latest
        if snapshot is None:
            return [], np.zeros(0, dtype=np.int64)
        subjects, rows = self._advisor.subjects_of(snapshot.keys)
        sums = sum_rows(getattr(snapshot, column), rows, len(subjects))
        shown = [row for row, subject in enumerate(subjects) if subject.kind is not SubjectKind.POD]
        subjects = [subjects[row] for row in shown]
        steady = self._sums.setdefault(column, SteadyTable())
        return subjects, steady.update([subject.key for subject in subjects], sums[shown])

    def _latency_histograms(self) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        """Those who never waited in one way have no histogram of it."""
        for reason, hist, total in (
            ("wakeup", "wakeup_hist", "wakeup_sum_ns"),
            ("preempted", "preempt_hist", "preempt_sum_ns"),
        ):
            subjects, counts = self._by_subject(hist)
            sums = self._by_subject(total)[1].tolist()
            for subject, reached, ns in zip(subjects, exported(counts), sums, strict=True):
                if reached[-1]:
                    yield (*container_labels(subject), subject.qos, reason), reached, ns / 1e9

    def _latency_sums(self, column: str) -> list[Row]:
        subjects, sums = self._by_subject(column)
        return [((*container_labels(s), s.qos), ns / 1e9) for s, ns in zip(subjects, sums.tolist(), strict=True)]

    def _culprits(self) -> Iterator[Row]:
        waits = self._advisor.waits()
        if waits is None:
            return
        subjects = {s.key: s for s in self._advisor.workloads.subjects if s.kind is not SubjectKind.POD}
        waiting = Waiting.of_waits(waits, self._advisor.index.owner, subjects)
        for victim, who, waited in self._culprit_counters.update(waiting):
            subject = subjects[victim]
            yield (*container_labels(subject), subject.qos, *culprit_labels(who)), waited

    def _lost(self) -> list[Row]:
        snapshot = self._advisor.latency_window.latest
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

    # --- /top

    def top(self, node: str, now: float) -> Top:
        """The picture as `koordctl top` shows it."""
        picture = self._advisor.picture
        use = picture.node if picture is not None else None
        system = picture.system if picture is not None else None
        return Top(
            node=node,
            at=now,
            cpus=len(self._facts.online_cpus),
            cpu=None if use is None else use.cores,
            memory=None if use is None else use.memory,
            memory_total=None if use is None else use.memory_total,
            system_cpu=None if system is None else system.cores,
            system_memory=None if system is None else system.memory,
            window=self._advisor.latency_window.seconds,
            probes=[
                FeatureState(name=name, up=status.loaded, source=status.source, reason=status.reason)
                for name, status in self._probes.status.items()
            ],
            conditions=[
                FeatureState(name=name, up=False, reason=reason) for name, reason in self._facts.reasons().items()
            ],
            rows=[] if picture is None else list(self._rows()),
        )

    def _rows(self) -> Iterator[TopRow]:
        picture = self._advisor.picture
        if picture is None:
            return
        window = self._advisor.culprits()
        blamed = {} if window is None else longest(window[0], self._advisor.index.owner, CULPRITS_SHOWN)
        for row, subject in enumerate(picture.workloads.subjects):
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
                cpu=_known(picture.use.cores[row]),
                memory=_known(picture.use.memory[row]),
                throttled=_known(picture.use.throttled[row]),
                pressure=self._pressure(subject.key),
                sched=self._sched(subject.key, blamed, 1.0 if window is None else window[1]),
                verdicts=self._verdicts(subject.key),
            )

    def _pressure(self, key: str) -> TopPressure | None:
        some = {resource: self._advisor.stalls.get((resource, "some"), {}).get(key) for resource in WIRE}
        return None if all(value is None for value in some.values()) else TopPressure(**some)

    def _sched(self, key: str, blamed: Mapping[str, tuple[list[Blame], float]], seconds: float) -> SchedLatency | None:
        latency = self._advisor.latencies.get(key)
        if latency is None:
            return None
        blames, total = blamed.get(key, ([], 0.0))
        return SchedLatency(
            p50=latency.p50,
            p99=latency.p99,
            wait=latency.wait,
            throttled=latency.throttled,
            count=latency.count,
            culprits=_culprits(blames, total, seconds),
        )


def _culprits(blames: Sequence[Blame], total: float, seconds: float) -> list[TopCulprit]:
    """*total*: what everybody is blamed for, those beyond *blames* included."""
    return [
        TopCulprit(
            kind=one.owner.kind,
            namespace=one.owner.namespace,
            pod=one.owner.pod,
            name=one.owner.name,
            qos=one.owner.qos,
            share=one.seconds / total,
            wait=one.seconds / seconds,
        )
        for one in blames
    ]


def _known(value: float) -> float | None:
    return None if isnan(value) else float(value)
