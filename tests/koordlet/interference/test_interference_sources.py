"""Memory, disk, network and cache: who held up whom, as tables."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.interference import sources
from koordlet.interference.cpu import HARDLY
from koordlet.interference.detector import Detector
from koordlet.interference.model import Evidence, Resource
from koordlet.metricsadvisor.stalls.blockio import SubjectBlockIO
from koordlet.metricsadvisor.stalls.latency import Blame
from koordlet.metricsadvisor.stalls.memstall import SubjectMemStall
from koordlet.metricsadvisor.stalls.netstall import PutOff, SubjectNetStall
from koordlet.probes.memstall import KINDS
from koordlet.statesinformer.pods.cgroupindex import Owner


def frame(make, *, ran=(0.5, 0.5), full=(np.nan, np.nan), behind=0.0):
    web, batch = make.container("web"), make.container("batch", qos="BE")
    return SimpleNamespace(
        subjects=(web, batch),
        keys=(web.key, batch.key),
        ran=np.array(ran),
        memory_full=np.array(full),
        pressure={},
        behind_softirqs=np.array([behind, 0.0]),
        users=lambda row: [make.because_of(batch, 1.0)],
    )


def stall(make, blames=(), **seconds):
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
def test_memory_is_split(make, seconds, blames, others, limit, shared):
    found = sources.split_memory(make.container("web"), stall(make, blames, **seconds))
    assert found == pytest.approx((others, limit, shared))


@given(st.dictionaries(st.sampled_from(KINDS), st.floats(0.0, 10.0)), st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_splitting_memory_loses_and_invents_nothing(make, seconds, mine, theirs):
    given_ = stall(make, [("web", mine), ("batch", theirs)], **seconds)
    found = sources.split_memory(make.container("web"), given_)
    assert found.others + found.own == pytest.approx(given_.total)
    assert min(found) >= -1e-9


def test_memory_by_the_probe_names_who_pressed(make):
    one = frame(make)
    window = {one.keys[0]: stall(make, [("batch", 0.5)], ancestor=0.5)}
    found = sources.memory(lambda: window, lambda: "bpf")(one)
    assert found.others.tolist() == pytest.approx([0.5 / (0.5 + 0.5 + HARDLY), 0.0])
    assert found.culprits(0)[0].owner.name == "batch"
    assert found.named
    assert sources.memory(lambda: None, lambda: "")(one) is None


@pytest.mark.parametrize(("full", "own"), [(0.99, True), (0.5, False), (np.nan, False)])
def test_memory_by_pressure_alone_looks_at_the_limit(make, full, own):
    one = frame(make, full=(full, np.nan))
    found = sources.memory(lambda: {one.keys[0]: stall(make, other=0.5)}, lambda: "pressure")(one)
    assert bool(found.own[0] > 0) is own
    assert bool(found.others[0] > 0) is not own


def disk(make, *, wait=0.0, device=0.0, throttled=0.0, blames=()):
    names = {"web": make.container("web"), "batch": make.container("batch", qos="BE")}
    culprits = tuple(make.because_of(names[name], value) for name, value in blames)
    return SubjectBlockIO(
        0, 0, 0, 0, 0, queue=wait, device=device, wait=wait, throttled=throttled, queue_p50=None, queue_p99=0.02,
        device_p50=None, device_p99=None, count=1, culprits=culprits,
    )  # fmt: skip


def test_a_disk_that_works_for_others_is_their_doing(make):
    one = frame(make, ran=(0.1, 0.1))
    window = {one.keys[0]: disk(make, wait=0.6, device=0.1, blames=[("batch", 0.4), ("web", 0.2)])}
    found = sources.io(lambda: window)(one)
    assert found.others[0] == pytest.approx(0.4 / (0.4 + 0.2 + 0.1 + 0.1 + HARDLY))
    assert found.own[0] == 0.0
    assert found.latency[0] == 0.02
    assert sources.io(lambda: None)(one) is None


def test_a_limit_on_its_own_io_is_its_own_doing(make):
    one = frame(make, ran=(0.1, 0.1))
    found = sources.io(lambda: {one.keys[0]: disk(make, throttled=0.9, device=0.05)})(one)
    assert found.own[0] == pytest.approx(0.9 / (0.9 + 0.05 + 0.1 + HARDLY))
    assert found.others[0] == 0.0


def softirqs(make, *, stolen=(), behind=0.0, thread=0.0, thread_for=(), ran=0.5):
    """The network's evidence of web, whose tasks are interrupted for whom *stolen* says, and wait for the kernel's
    thread, which works for whom *thread_for* says; seconds a second."""
    named = {"web": make.container("web"), "batch": make.container("batch", qos="BE")}

    def blames(given):
        kernel = Owner("kernel", "kthread")
        return tuple(
            Blame(kernel, value, 1) if name == "kernel" else make.because_of(named[name], value)
            for name, value in given
        )

    one = frame(make, ran=(ran, 0.5), behind=behind)
    stall = SubjectNetStall(0, sum(s for _, s in stolen), 0.001, 0, None, 0, blames(stolen))
    late = PutOff(thread, blames(thread_for))
    return sources.network(lambda: {one.keys[0]: stall} if stolen else {}, lambda: late)(one)


@pytest.mark.parametrize(
    ("given", "lost", "wanted"),
    [
        pytest.param({"stolen": [("batch", 0.3), ("web", 0.1)]}, 0.3, 0.5, id="own-packets-are-work"),
        pytest.param(
            {"stolen": [("batch", 0.05)], "behind": 0.04, "thread": 0.1, "thread_for": [("batch", 0.1)], "ran": 0.25},
            0.09, 0.29, id="stolen-and-behind-the-thread-are-one-loss",
        ),
        pytest.param({"behind": 0.2, "thread": 0.05, "thread_for": [("batch", 0.05)]}, 0.05, 0.55, id="other-softirqs"),
        pytest.param({"behind": 0.2}, 0.0, 0.5, id="the-thread-does-nothing-for-the-network"),
        pytest.param(
            {"behind": 0.1, "thread": 0.2, "thread_for": [("web", 0.15), ("batch", 0.05)]},
            0.025, 0.525, id="the-thread-works-for-itself",
        ),
        pytest.param({}, 0.0, 0.5, id="nothing"),
    ],
)  # fmt: skip
def test_what_packets_cost_a_container(make, given, lost, wanted):
    found = softirqs(make, **given)
    assert found.others[0] == pytest.approx(lost / (wanted + HARDLY))  # what packets took is part of what it ran
    assert found.own[0] == found.others[1] == 0.0


def test_packets_have_their_receivers_as_culprits_and_else_the_kernel(make):
    found = softirqs(
        make,
        stolen=[("batch", 0.06), ("kernel", 0.02), ("web", 0.02)],
        behind=0.05, thread=0.1, thread_for=[("batch", 0.1)],
    )  # fmt: skip
    seen = [(one.owner.name, pytest.approx(one.seconds)) for one in found.culprits(0)]
    assert seen == [("batch", 0.11), ("network softirqs", 0.02), ("web", 0.02)]
    assert found.culprits(1) == []


@pytest.mark.parametrize("window", [0.5, 3.0, 10.0])
def test_seconds_of_a_culprit_are_a_second_whatever_the_window(make, window):
    """Collectors have windows of their own; the evidence's length is not theirs."""
    web, batch = make.container("web"), make.container("batch", qos="BE")
    one = frame(make)
    held = {
        Resource.MEMORY: sources.memory(lambda: {web.key: stall(make, [("batch", 0.4)], direct=0.4)}, lambda: "bpf"),
        Resource.IO: sources.io(lambda: {web.key: disk(make, wait=0.7, blames=[("batch", 0.7)])}),
        Resource.NETWORK: lambda _: softirqs(make, stolen=[("batch", 0.3)]),
    }
    evidence = Evidence((web, batch), window, {resource: source(one) for resource, source in held.items()})
    verdicts = Detector().step(evidence, 0.0, DEFAULT).verdicts
    said = {verdict.resource: verdict.culprits[0].seconds for verdict in verdicts}
    assert said == pytest.approx({Resource.MEMORY: 0.4, Resource.IO: 0.7, Resource.NETWORK: 0.3})


def test_the_cache_is_judged_by_cpi_and_its_culprits_are_guessed(make):
    one = frame(make)
    found = sources.cache(lambda: {one.keys[0]: 2.5})(one)
    assert found.others[0] == 2.5
    assert np.isnan(found.others[1])
    assert not found.named
    assert found.culprits(0)[0].owner.name == "batch"
    assert sources.cache(dict)(one) is None
