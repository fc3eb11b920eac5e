"""Resources and variables: the specification's examples as tables, and properties for any input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.cri.api_pb2 import KeyValue
from koordlet.api.hooks.api_pb2 import HugepageLimit, LinuxContainerResources
from runtimeproxy.hooks.merge import merged, merged_envs, updated, variables

GIB = 1 << 30


def res(**fields: Any) -> LinuxContainerResources:
    return LinuxContainerResources(**fields)


ASKED = res(cpu_period=100000, cpu_quota=200000, cpu_shares=2048, memory_limit_in_bytes=GIB, oom_score_adj=-997)
WITH_SETS = res(cpu_shares=2, oom_score_adj=500, cpuset_cpus="0-3", cpuset_mems="0")


@pytest.mark.parametrize(
    ("requested", "answered", "expected"),
    [
        pytest.param(None, res(cpu_quota=5), None, id="request-absent"),
        pytest.param(ASKED, None, ASKED, id="answer-absent"),
        pytest.param(
            ASKED,
            res(
                cpu_period=100000,
                cpu_quota=-1,
                cpu_shares=2,
                memory_limit_in_bytes=GIB,
                oom_score_adj=-997,
                cpuset_cpus="0-3",
            ),
            res(
                cpu_period=100000,
                cpu_quota=-1,
                cpu_shares=2,
                memory_limit_in_bytes=GIB,
                oom_score_adj=-997,
                cpuset_cpus="0-3",
            ),
            id="spec-example",
        ),
        pytest.param(
            ASKED,
            res(cpu_quota=-1),
            res(cpu_period=100000, cpu_quota=-1, cpu_shares=2048, memory_limit_in_bytes=GIB),
            id="spec-example-quota-only",
        ),
        pytest.param(
            WITH_SETS, res(cpu_shares=3, oom_score_adj=500), res(cpu_shares=3, oom_score_adj=500), id="clears"
        ),
        pytest.param(WITH_SETS, res(), WITH_SETS, id="partial-keeps"),
        pytest.param(
            WITH_SETS,
            res(cpuset_cpus="5"),
            res(cpu_shares=2, oom_score_adj=500, cpuset_cpus="5", cpuset_mems="0"),
            id="partial-cpuset",
        ),
        pytest.param(
            WITH_SETS,
            res(oom_score_adj=-5, unified={"cpu.idle": "1"}),
            res(cpu_shares=2, oom_score_adj=-5, cpuset_cpus="0-3", cpuset_mems="0", unified={"cpu.idle": "1"}),
            id="partial-score-and-unified",
        ),
        pytest.param(
            ASKED, res(cpu_shares=1, oom_score_adj=1001, cpu_period=-1), res(
                cpu_period=100000, cpu_quota=200000, cpu_shares=1, memory_limit_in_bytes=GIB, oom_score_adj=-997
            ), id="out-of-range-passed-over",
        ),
        pytest.param(
            res(unified={"a.b": "1", "c.d": "2"}), res(cpu_shares=9, unified={"c.d": "3"}),
            res(cpu_shares=9, unified={"a.b": "1", "c.d": "3"}), id="unified",
        ),
        pytest.param(
            res(hugepage_limits=[HugepageLimit(page_size="2MB", limit=4)]),
            res(cpu_shares=9, hugepage_limits=[HugepageLimit(page_size="1GB", limit=1)]),
            res(cpu_shares=9, hugepage_limits=[HugepageLimit(page_size="2MB", limit=4)]), id="hugepages",
        ),
        pytest.param(
            res(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=GIB),
            res(memory_limit_in_bytes=2 * GIB, memory_swap_limit_in_bytes=GIB),
            res(memory_limit_in_bytes=2 * GIB, memory_swap_limit_in_bytes=2 * GIB), id="swap-follows-memory",
        ),
    ],
)  # fmt: skip
def test_merge(requested: Any, answered: Any, expected: Any) -> None:
    assert merged(requested, answered) == expected


@pytest.mark.parametrize(
    ("known", "requested", "expected"),
    [
        pytest.param(
            res(cpu_quota=100000, cpu_shares=1024, memory_limit_in_bytes=GIB, cpuset_cpus="0-3"),
            res(cpu_shares=512),
            res(cpu_quota=100000, cpu_shares=512, memory_limit_in_bytes=GIB, cpuset_cpus="0-3"),
            id="spec-example",
        ),
        pytest.param(None, None, None, id="nothing-known"),
        pytest.param(ASKED, None, ASKED, id="nothing-asked"),
        pytest.param(None, res(cpu_shares=5), res(cpu_shares=5), id="only-asked"),
        pytest.param(
            res(oom_score_adj=7, cpu_quota=5), res(oom_score_adj=9, cpu_quota=-1), res(oom_score_adj=7, cpu_quota=-1),
            id="score-never",
        ),
        pytest.param(
            res(hugepage_limits=[HugepageLimit(page_size="2MB", limit=4)]),
            res(hugepage_limits=[HugepageLimit(page_size="2MB", limit=8)], cpuset_mems="1"),
            res(hugepage_limits=[HugepageLimit(page_size="2MB", limit=4)], cpuset_mems="1"), id="hugepages-never",
        ),
        pytest.param(
            res(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=GIB), res(memory_limit_in_bytes=3 * GIB),
            res(memory_limit_in_bytes=3 * GIB, memory_swap_limit_in_bytes=3 * GIB), id="swap-follows-memory",
        ),
    ],
)  # fmt: skip
def test_update(known: Any, requested: Any, expected: Any) -> None:
    assert updated(known, requested) == expected


def test_the_specs_update_with_its_hook() -> None:
    state = updated(
        res(cpu_quota=100000, cpu_shares=1024, memory_limit_in_bytes=GIB, cpuset_cpus="0-3"), res(cpu_shares=512)
    )
    assert state is not None
    echo = LinuxContainerResources()
    echo.CopyFrom(state)
    echo.cpuset_cpus = "0-1"
    assert merged(state, echo) == res(cpu_quota=100000, cpu_shares=512, memory_limit_in_bytes=GIB, cpuset_cpus="0-1")


numbers = st.integers(min_value=-3, max_value=4)
lists = st.sampled_from(["", "0", "0-3", "1,2"])
maps = st.dictionaries(st.sampled_from(["cpu.idle", "io.weight", "memory.high"]), st.sampled_from(["", "1", "max"]))
resources = st.builds(
    res,
    cpu_period=numbers, cpu_quota=numbers, cpu_shares=numbers, memory_limit_in_bytes=numbers,
    memory_swap_limit_in_bytes=numbers, oom_score_adj=st.sampled_from([-1001, -1000, 0, 5, 1000, 1001]),
    cpuset_cpus=lists, cpuset_mems=lists, unified=maps,
)  # fmt: skip


@given(resources, resources)
def test_an_answer_counts_once(requested: LinuxContainerResources, answered: LinuxContainerResources) -> None:
    before = (requested.SerializeToString(deterministic=True), answered.SerializeToString(deterministic=True))
    once = merged(requested, answered)
    assert merged(once, answered) == once
    assert before == (requested.SerializeToString(deterministic=True), answered.SerializeToString(deterministic=True))


@given(resources)
def test_an_echo_changes_nothing(requested: LinuxContainerResources) -> None:
    assert merged(requested, requested) == requested
    twice = updated(requested, requested)
    assert updated(twice, requested) == twice


@given(resources, resources)
def test_unknown_fields_remain_the_requests(
    requested: LinuxContainerResources, answered: LinuxContainerResources
) -> None:
    later = LinuxContainerResources.FromString(requested.SerializeToString() + b"\xa2\x06\x03new")  # field 100
    result = merged(later, answered)
    assert result is not None and b"\xa2\x06\x03new" in result.SerializeToString()


def envs(*pairs: tuple[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in pairs]


@pytest.mark.parametrize(
    ("requested", "answered", "expected"),
    [
        pytest.param([("B", "1"), ("A", "2")], {}, None, id="no-variables-said"),
        pytest.param([("B", "1"), ("A", "2")], {"A": "2", "B": "1"}, None, id="echo"),
        pytest.param([("A", "1"), ("A", "2")], {"A": "2"}, None, id="echo-of-duplicates"),
        pytest.param(
            [("B", "1"), ("A", "2")], {"A": "2", "B": "9", "Z": "z", "C": "c"},
            [("B", "9"), ("A", "2"), ("C", "c"), ("Z", "z")], id="in-place-then-sorted",
        ),
        pytest.param([("B", "1"), ("A", "2")], {"A": "2"}, [("A", "2")], id="replaces-the-map"),
        pytest.param(
            [("A", "1"), ("B", "0"), ("A", "2")], {"A": "3", "B": "0"}, [("A", "3"), ("B", "0"), ("A", "3")],
            id="both-duplicates",
        ),
        pytest.param(
            [("A", "1"), ("B", "0"), ("A", "2")], {"A": "2", "B": "1"}, [("A", "1"), ("B", "1"), ("A", "2")],
            id="duplicates-stay",
        ),
        pytest.param([], {"A": ""}, [("A", "")], id="first-variable"),
    ],
)  # fmt: skip
def test_variables(requested: Any, answered: dict[str, str], expected: Any) -> None:
    assert merged_envs(envs(*requested), answered) == (None if expected is None else envs(*expected))


pairs = st.lists(st.tuples(st.sampled_from("ABCDE"), st.sampled_from("123")))


@given(pairs, st.dictionaries(st.sampled_from("ABCDEFG"), st.sampled_from("1234"), min_size=1))
def test_variables_become_the_answers_in_the_old_order(requested: Any, answered: dict[str, str]) -> None:
    result = merged_envs(envs(*requested), answered)
    now = envs(*requested) if result is None else result
    assert variables(now) == answered
    kept = [name for name, _ in requested if name in answered]
    assert [env.key for env in now] == kept + sorted(answered.keys() - dict(requested).keys())
    assert merged_envs(now, answered) is None
