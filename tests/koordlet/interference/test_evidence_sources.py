"""Evidence about memory, disk, network and cache, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.interference import sources
from koordlet.interference.attribution import MIN_WANTED_CORES
from koordlet.interference.detector import Detector
from koordlet.interference.model import Evidence, ResourceEvidence, WaitResource
from koordlet.metricsadvisor.stalls.attribution import CulpritTime
from koordlet.metricsadvisor.stalls.blockio import SubjectBlockIO
from koordlet.metricsadvisor.stalls.memstall import SubjectMemStall
from koordlet.metricsadvisor.stalls.netstall import DeferredSoftirqs, SubjectNetStall
from koordlet.probes.memstall.snapshot import KINDS
from koordlet.statesinformer.pods.cgroupindex import Owner
from tests.koordlet.interference.conftest import Make


def window_of(
    make: type[Make], *, ran: tuple[float, float] = (0.5, 0.5), memory_ratio: tuple[float, float] = (np.nan, np.nan)
) -> Any:
    web, batch = make.container("web"), make.container("batch", qos="BE")
    return SimpleNamespace(
        subjects=(web, batch),
        keys=(web.key, batch.key),
        row_of={web.key: 0, batch.key: 1},
        ran=np.array(ran),
        memory_usage_ratio=np.array(memory_ratio),
        pressure={},
        largest_users=lambda row: [make.because_of(batch, 1.0)],
    )


def stall(make: type[Make], blames: Sequence[tuple[str, float]] = (), **seconds: Any) -> SubjectMemStall:
    names = {"web": make.container("web"), "batch": make.container("batch", qos="BE")}
    return SubjectMemStall(
        seconds=seconds, p99=0.01, culprits=tuple(make.because_of(names[name], value) for name, value in blames)
    )


@pytest.mark.parametrize(
    ("seconds", "blames", "others", "limit", "shared"),
    [
        pytest.param({"own_limit": 0.4}, [("web", 0.4)], 0.0, 0.4, 0.0, id="own-limit"),
        pytest.param({"ancestor": 0.4}, [("batch", 0.3), ("web", 0.1)], 0.3, 0.0, 0.1, id="a-limit-shared"),
        pytest.param({"direct": 0.4}, [("batch", 0.4)], 0.4, 0.0, 0.0, id="the-node-is-short"),
        pytest.param({"direct": 0.4}, [("web", 0.4)], 0.0, 0.0, 0.4, id="it-made-the-node-short"),
        pytest.param({"throttle": 0.2}, [], 0.0, 0.2, 0.0, id="memory-high"),
        pytest.param({"own_limit": 0.2, "refault": 0.6}, [("web", 0.2)], 0.0, 0.8, 0.0, id="refaults-after-own-limit"),
        pytest.param(
            {"ancestor": 0.2, "swapin": 0.6},
            [("batch", 0.1), ("web", 0.1)],
            0.4,
            0.0,
            0.4,
            id="swap-after-a-shared-limit",
        ),
        pytest.param(
            {"own_limit": 0.1, "direct": 0.3, "refault": 0.4},
            [("batch", 0.2), ("web", 0.2)],
            0.4,
            0.2,
            0.2,
            id="all-three",
        ),
        pytest.param({"compaction": 0.1}, [], 0.1, 0.0, 0.0, id="compaction"),
    ],
)
def test_memory_stalls_are_split_by_cause(
    make: type[Make],
    seconds: dict[str, Any],
    blames: list[tuple[str, float]],
    others: float,
    limit: float,
    shared: float,
) -> None:
    evidence = sources.split_memory(make.container("web"), stall(make, blames, **seconds))
    assert evidence == pytest.approx((others, limit, shared))


@given(st.dictionaries(st.sampled_from(KINDS), st.floats(0.0, 10.0)), st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_the_split_of_memory_stalls_keeps_the_total(
    make: type[Make], seconds: dict[str, Any], mine: float, theirs: float
) -> None:
    measured = stall(make, [("web", mine), ("batch", theirs)], **seconds)
    evidence = sources.split_memory(make.container("web"), measured)
    assert sum(evidence) == pytest.approx(sum(measured.seconds.values()))
    assert min(evidence) >= -1e-9


def test_the_memory_probe_names_the_culprits(make: type[Make]) -> None:
    window = window_of(make)
    stalls = {window.keys[0]: stall(make, [("batch", 0.5)], ancestor=0.5)}
    evidence = sources.MemorySource(lambda: stalls, lambda: "bpf").evidence(window)
    assert evidence is not None
    assert evidence.others.tolist() == pytest.approx([0.5 / (0.5 + 0.5 + MIN_WANTED_CORES), 0.0])
    assert evidence.culprits(0)[0].owner.name == "batch"
    assert evidence.named
    assert sources.MemorySource(lambda: None, lambda: "").evidence(window) is None


@pytest.mark.parametrize(("full", "own"), [(0.99, True), (0.5, False), (np.nan, False)])
def test_without_a_probe_memory_pressure_at_the_limit_is_self_inflicted(
    make: type[Make], full: float, own: bool
) -> None:
    window = window_of(make, memory_ratio=(full, np.nan))
    evidence = sources.MemorySource(lambda: {window.keys[0]: stall(make, other=0.5)}, lambda: "pressure").evidence(
        window
    )
    assert evidence is not None
    assert bool(evidence.own[0] > 0) is own
    assert bool(evidence.others[0] > 0) is not own


def disk(
    make: type[Make],
    *,
    wait: float = 0.0,
    device: float = 0.0,
    throttled: float = 0.0,
    blames: Sequence[tuple[str, float]] = (),
) -> SubjectBlockIO:
    names = {"web": make.container("web"), "batch": make.container("batch", qos="BE")}
    culprits = tuple(make.because_of(names[name], value) for name, value in blames)
    return SubjectBlockIO(0, 0, device=device, wait=wait, throttled=throttled, queue_p99=0.02, culprits=culprits)


def test_waiting_for_a_disk_behind_others_is_caused_by_them(make: type[Make]) -> None:
    window = window_of(make, ran=(0.1, 0.1))
    stalls = {window.keys[0]: disk(make, wait=0.6, device=0.1, blames=[("batch", 0.4), ("web", 0.2)])}
    evidence = sources.IoSource(lambda: stalls).evidence(window)
    assert evidence is not None
    assert evidence.others[0] == pytest.approx(0.4 / (0.4 + 0.2 + 0.1 + 0.1 + MIN_WANTED_CORES))
    assert evidence.own[0] == 0.0
    assert evidence.latency is not None
    assert evidence.latency[0] == 0.02
    assert sources.IoSource(lambda: None).evidence(window) is None


def test_throttling_by_the_own_io_limit_is_self_inflicted(make: type[Make]) -> None:
    window = window_of(make, ran=(0.1, 0.1))
    evidence = sources.IoSource(lambda: {window.keys[0]: disk(make, throttled=0.9, device=0.05)}).evidence(window)
    assert evidence is not None
    assert evidence.own[0] == pytest.approx(0.9 / (0.9 + 0.05 + 0.1 + MIN_WANTED_CORES))
    assert evidence.others[0] == 0.0


def softirqs(
    make: type[Make],
    *,
    stolen: Sequence[tuple[str, float]] = (),
    behind: float = 0.0,
    thread: float = 0.0,
    thread_for: Sequence[tuple[str, float]] = (),
    ran: float = 0.5,
) -> ResourceEvidence:
    """The network's evidence of web. Its tasks are interrupted for the receivers in `stolen`, and wait for the kernel's
    thread, which works for those in `thread_for`; seconds per second."""
    named = {"web": make.container("web"), "batch": make.container("batch", qos="BE")}

    def blames(culprit_waits: Sequence[tuple[str, float]]) -> tuple[CulpritTime, ...]:
        kernel = Owner("kernel", "kthread")
        return tuple(
            CulpritTime(kernel, value, 1) if name == "kernel" else make.because_of(named[name], value)
            for name, value in culprit_waits
        )

    window = window_of(make, ran=(ran, 0.5))
    stall = SubjectNetStall(sum(s for _, s in stolen), 0.001, None, blames(stolen))
    deferred, behind_ksoftirqd = DeferredSoftirqs(thread, blames(thread_for)), np.array([behind, 0.0])
    stalls = {window.keys[0]: stall} if stolen else {}
    return sources.NetworkSource(lambda: stalls, lambda: deferred, lambda: behind_ksoftirqd).evidence(window)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("softirq_figures", "lost", "wanted_cores"),
    [
        pytest.param({"stolen": [("batch", 0.3), ("web", 0.1)]}, 0.3, 0.5, id="own-packets-are-no-delay"),
        pytest.param(
            {"stolen": [("batch", 0.05)], "behind": 0.04, "thread": 0.1, "thread_for": [("batch", 0.1)], "ran": 0.25},
            0.09, 0.29, id="stolen-and-behind-the-thread-are-one-loss",
        ),
        pytest.param({"behind": 0.2, "thread": 0.05, "thread_for": [("batch", 0.05)]}, 0.05, 0.55, id="other-softirqs"),
        pytest.param({"behind": 0.2}, 0.0, 0.5, id="the-thread-does-nothing-for-the-network"),
        pytest.param(
            {"behind": 0.1, "thread": 0.2, "thread_for": [("web", 0.15), ("batch", 0.05)]},
            0.025, 0.525, id="the-thread-works-for-the-container",
        ),
        pytest.param({}, 0.0, 0.5, id="nothing"),
    ],
)  # fmt: skip
def test_packets_of_others_cost_a_container_cpu_time(
    make: type[Make], softirq_figures: dict[str, Any], lost: float, wanted_cores: float
) -> None:
    evidence = softirqs(make, **softirq_figures)
    assert evidence.others[0] == pytest.approx(lost / (wanted_cores + MIN_WANTED_CORES))
    assert evidence.own[0] == evidence.others[1] == 0.0


def test_culprits_of_packets_are_their_receivers_or_the_kernel(make: type[Make]) -> None:
    evidence = softirqs(
        make,
        stolen=[("batch", 0.06), ("kernel", 0.02), ("web", 0.02)],
        behind=0.05, thread=0.1, thread_for=[("batch", 0.1)],
    )  # fmt: skip
    culprits = evidence.culprits(0)
    assert [culprit.owner.name for culprit in culprits] == ["batch", "network softirqs", "web"]
    assert [culprit.seconds for culprit in culprits] == pytest.approx([0.11, 0.02, 0.02])
    assert evidence.culprits(1) == []


@pytest.mark.parametrize("seconds", [0.5, 3.0, 10.0])
def test_seconds_of_a_culprit_are_per_second_for_any_window(make: type[Make], seconds: float) -> None:
    """Collectors have windows of their own, independent of the evidence's length."""
    web, batch = make.container("web"), make.container("batch", qos="BE")
    window = window_of(make)
    resources = {
        WaitResource.MEMORY: sources.MemorySource(
            lambda: {web.key: stall(make, [("batch", 0.4)], direct=0.4)}, lambda: "bpf"
        ).evidence(window),
        WaitResource.IO: sources.IoSource(lambda: {web.key: disk(make, wait=0.7, blames=[("batch", 0.7)])}).evidence(
            window
        ),
        WaitResource.NETWORK: softirqs(make, stolen=[("batch", 0.3)]),
    }
    evidence = Evidence((web, batch), seconds, resources)  # type: ignore[arg-type]
    verdicts = Detector().step(evidence, 0.0, DEFAULT).verdicts
    culprit_seconds = {verdict.resource: verdict.culprits[0].seconds for verdict in verdicts}
    assert culprit_seconds == pytest.approx({WaitResource.MEMORY: 0.4, WaitResource.IO: 0.7, WaitResource.NETWORK: 0.3})


def test_cache_evidence_is_cpi_with_guessed_culprits(make: type[Make]) -> None:
    window = window_of(make)
    evidence = sources.CacheSource(lambda: {window.keys[0]: 2.5}).evidence(window)
    assert evidence is not None
    assert evidence.others[0] == 2.5
    assert np.isnan(evidence.others[1])
    assert not evidence.named
    assert evidence.culprits(0)[0].owner.name == "batch"
    assert sources.CacheSource(dict).evidence(window) is None
