"""Bodies of create and update: what is read and written; everything else stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from runtimeproxy.docker import bodies
from runtimeproxy.docker.bodies import InvalidBody, JsonObject


def members(value: Any) -> JsonObject:
    return JsonObject(json.dumps(value).encode(), "body")


FULL = {
    "CpuPeriod": 100000, "CpuQuota": 200000, "CpuShares": 2048, "Memory": 1 << 30, "OomScoreAdj": -997,
    "CpusetCpus": "0-3", "CpusetMems": "0", "MemorySwap": 1 << 31,
}  # fmt: skip
RESOURCES = LinuxContainerResources(
    cpu_period=100000, cpu_quota=200000, cpu_shares=2048, memory_limit_in_bytes=1 << 30, oom_score_adj=-997,
    cpuset_cpus="0-3", cpuset_mems="0", memory_swap_limit_in_bytes=1 << 31,
)  # fmt: skip


def test_resources_of_a_host_config() -> None:
    assert bodies.read_resources(members({**FULL, "CgroupParent": "/kubepods"})) == RESOURCES
    assert bodies.read_resources(members({})) == LinuxContainerResources()
    assert bodies.read_resources(members({"Memory": None, "CpusetCpus": None})) == LinuxContainerResources()


def test_an_answer_overwrites_a_create_completely() -> None:
    host = members({**FULL, "Binds": ["/a:/b"]})
    bodies.write_create(host, LinuxContainerResources(cpu_shares=2, cpu_quota=-1))
    zeros = {"CpuPeriod": 0, "Memory": 0, "OomScoreAdj": 0, "CpusetCpus": "", "CpusetMems": "", "MemorySwap": 0}
    assert json.loads(host.raw) == {"CpuShares": 2, "CpuQuota": -1, **zeros, "Binds": ["/a:/b"]}


def test_an_answer_overwrites_an_update_but_for_the_score() -> None:
    update = members({"CpuShares": 512, "RestartPolicy": {"Name": "no"}})
    bodies.write_update(update, RESOURCES)
    without_score = {key: value for key, value in FULL.items() if key != "OomScoreAdj"}
    assert json.loads(update.raw) == {**without_score, "RestartPolicy": {"Name": "no"}}


@pytest.mark.parametrize(
    ("requested", "answered", "expected"),
    [
        pytest.param({}, {"memory_limit_in_bytes": -1, "cpu_quota": -1}, {"cpu_quota": -1}, id="unlimited"),
        pytest.param({}, {"cpu_shares": -1, "cpu_period": -1}, {}, id="negative"),
        pytest.param({"oom_score_adj": 5}, {"oom_score_adj": 1001}, {"oom_score_adj": 5}, id="score-out-of-range"),
        pytest.param({"oom_score_adj": 5}, {"oom_score_adj": -1000}, {"oom_score_adj": -1000}, id="score"),
        pytest.param(
            {"memory_limit_in_bytes": 5, "memory_swap_limit_in_bytes": 5},
            {"memory_limit_in_bytes": 9, "memory_swap_limit_in_bytes": 5},
            {"memory_limit_in_bytes": 9, "memory_swap_limit_in_bytes": 9},
            id="swap-follows-memory-up",
        ),
        pytest.param(
            {},
            {"memory_limit_in_bytes": 5, "memory_swap_limit_in_bytes": 9},
            {"memory_limit_in_bytes": 5, "memory_swap_limit_in_bytes": 9},
            id="swap-above-memory",
        ),
        pytest.param({}, {"memory_limit_in_bytes": -1, "memory_swap_limit_in_bytes": 9}, {}, id="swap-without-memory"),
        pytest.param({}, {"memory_swap_limit_in_bytes": -1}, {"memory_swap_limit_in_bytes": -1}, id="swap-unlimited"),
    ],
)
def test_values_that_dockerd_refuses_are_not_sent(
    requested: dict[str, int], answered: dict[str, int], expected: dict[str, int]
) -> None:
    merged = bodies.without_refused_values(LinuxContainerResources(**requested), LinuxContainerResources(**answered))  # type: ignore[arg-type]
    assert merged == LinuxContainerResources(**expected)  # type: ignore[arg-type]


def test_an_echo_changes_nothing() -> None:
    raw = b'{ "Memory" : 1073741824, "cpushares":2,"Extra" : 1e400 }'
    host = JsonObject(raw, "body")
    bodies.write_create(host, bodies.read_resources(host))
    assert not host.changed and host.raw is raw


def test_names_are_matched_as_go_does() -> None:
    host = JsonObject(b'{"memory": 1, "MEMORY": 2, "cpushares": 7}', "body")
    assert host.get("Memory", int) == 2
    host.set("Memory", 3)
    assert json.loads(host.raw) == {"MEMORY": 3, "cpushares": 7}


def test_calls_on_unknown_objects_keep_their_bytes() -> None:
    raw = b'{"New": {"a" : 1.50, "b":12345678901234567890123}, "Memory": 1, "\\u00e4":"\\ud83d\\ude00"}'
    host = JsonObject(raw, "body")
    host.set("Memory", 2)
    assert b'{"a" : 1.50, "b":12345678901234567890123}' in host.raw and b'"\\ud83d\\ude00"' in host.raw


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda resources: st.lists(resources, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text("Xyz", min_size=1, max_size=4), plain, max_size=5), st.integers(1, 1 << 40))
def test_unknown_members_survive_a_change(extra: dict[str, Any], memory: int) -> None:
    config = members({**extra, "HostConfig": {**extra, "Memory": memory - 1}})
    host = config.object("HostConfig")
    host.set("Memory", memory)
    config.set("HostConfig", host)
    assert json.loads(config.raw) == {**extra, "HostConfig": {**extra, "Memory": memory}}


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b'{"a":', b"{}{}", b'{"a":1}garbage', b"\xff", b'{"\xff":1}'])
def test_bodies_that_are_no_objects_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidBody, match=r"^body: "):
        JsonObject(raw, "body")


@pytest.mark.parametrize(
    "host",
    [
        pytest.param({"Memory": "1g"}, id="text-for-number"),
        pytest.param({"Memory": 1 << 63}, id="beyond-64-bits"),
        pytest.param({"CpusetCpus": 3}, id="number-for-text"),
        pytest.param({"CpuShares": 1.5}, id="fraction"),
    ],
)
def test_members_of_another_kind(host: dict[str, Any]) -> None:
    with pytest.raises(InvalidBody, match=next(iter(host))):
        bodies.read_resources(members(host))


def test_a_missing_or_null_object_is_an_empty_one() -> None:
    for value in ({}, {"HostConfig": None}):
        assert members(value).object("HostConfig").raw == b"{}"
    with pytest.raises(InvalidBody, match="HostConfig"):
        members({"HostConfig": 1}).object("HostConfig")


@pytest.mark.parametrize(
    ("new", "changed"),
    [
        pytest.param({"cpu_shares": 512}, {"cpu_shares": 512}, id="above-zero"),
        pytest.param({"cpu_quota": -1}, {}, id="minus-one-is-not-merged"),
        pytest.param({"cpuset_cpus": "0-1"}, {"cpuset_cpus": "0-1"}, id="text"),
        pytest.param({"oom_score_adj": 5}, {}, id="never-the-score"),
        pytest.param({}, {}, id="nothing"),
    ],
)
def test_an_update_is_merged_into_what_is_stored(new: dict[str, Any], changed: dict[str, Any]) -> None:
    expected = LinuxContainerResources()
    expected.CopyFrom(RESOURCES)
    expected.MergeFrom(LinuxContainerResources(**changed))
    assert bodies.merge_resources(RESOURCES, LinuxContainerResources(**new)) == expected


def test_an_answer_to_an_update_may_lift_the_quota() -> None:
    applied = bodies.applied_resources(RESOURCES, LinuxContainerResources(cpu_quota=-1))
    assert (applied.cpu_quota, applied.cpu_shares) == (-1, 2048)


@pytest.mark.parametrize(
    ("env", "desired", "merged"),
    [
        pytest.param(["B=1", "A=2"], {"A": "2", "B": "1"}, ["B=1", "A=2"], id="echo"),
        pytest.param(["B=1", "A=2"], {"A": "3", "B": "1"}, ["B=1", "A=3"], id="in-place"),
        pytest.param(["B=1"], {"B": "1", "Z": "1", "C": ""}, ["B=1", "C=", "Z=1"], id="new-ones-sorted"),
        pytest.param(["A=1", "A=2"], {"A": "2"}, ["A=1", "A=2"], id="duplicates-stay"),
        pytest.param(["A=1", "A=2"], {"A": "3"}, ["A=3", "A=3"], id="duplicates-change-together"),
        pytest.param(["A=1", "B=2"], {"B": "2"}, ["B=2"], id="taken-away"),
        pytest.param(["UNSET", "A=1"], {"A": "1"}, ["UNSET", "A=1"], id="without-value"),
        pytest.param(["A=b=c"], {"A": "b=c"}, ["A=b=c"], id="equals-in-the-value"),
    ],
)
def test_variables(env: list[str], desired: dict[str, str], merged: list[str]) -> None:
    assert bodies.merge_env(env, desired) == merged


entries = st.lists(st.text("AB=1", max_size=4), max_size=6)


@given(entries, st.dictionaries(st.sampled_from("ABCD"), st.text("12=", max_size=2), max_size=4))
def test_the_list_contains_the_hooks_variables(env: list[str], desired: dict[str, str]) -> None:
    assert bodies.env_map(bodies.merge_env(env, desired)) == desired
    assert bodies.merge_env(env, bodies.env_map(env)) == env
