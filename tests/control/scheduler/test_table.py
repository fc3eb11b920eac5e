"""The table counts nodes and pods, and reverts trials completely."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.state.pods import RESULT_ANNOTATIONS, PodInfo, Shape
from control.scheduler.state.selectors import PodCounter
from control.scheduler.state.table import CPU, PODS
from koordlet.api.names import LABEL_QUOTA_NAME
from tests.control.scheduler.build import Cluster, node, pod


def test_counts_requests_and_pods() -> None:
    cluster = Cluster(node("a", cpu="4"), node("b"))
    cluster.put(pod(cpu="500m", on="a"), pod(cpu=None, memory=None, on="a"))
    (a,) = cluster.rows("a")
    assert cluster.table.allocatable[CPU, a] == 4000
    assert cluster.table.requested[CPU, a] == 500
    assert cluster.table.requested[PODS, a] == 2
    assert cluster.table.nonzero[CPU, a] == 600  # 100m for the container that asks for nothing


def test_a_removed_node_with_pods_keeps_its_row_until_they_are_gone() -> None:
    cluster = Cluster(node("a"))
    (info,) = cluster.put(pod(on="a"))
    cluster.table.remove_node("a")
    assert cluster.table.row("a") is None
    assert not cluster.table.valid[0]
    cluster.table.remove_pod(info)
    assert cluster.table.rows == {}
    assert cluster.table.set_node(node("b")) == 0  # the row is used again
    assert cluster.table.requested[:, 0].tolist() == [0] * len(cluster.table.resources)


def test_a_pod_counts_once() -> None:
    cluster = Cluster(node("a"))
    (info,) = cluster.put(pod(on="a"))
    with pytest.raises(ValueError, match="already counted on a"):
        cluster.table.add_pod(info, "a")


def test_equal_pods_share_a_shape_and_others_do_not() -> None:
    cluster = Cluster()
    first, second = cluster.info(pod(labels={"app": "x"})), cluster.info(pod(labels={"app": "x"}))
    other = cluster.info(pod(labels={"app": "y"}))
    assert first.shape is second.shape
    assert other.shape is not first.shape


def test_what_the_scheduler_writes_is_no_part_of_the_shape() -> None:
    cluster = Cluster()
    bound = cluster.info(pod(annotations={name: name for name in RESULT_ANNOTATIONS} | {"mine": "x"}))
    waiting = cluster.info(pod(annotations={"mine": "x"}))
    assert bound.shape is waiting.shape
    assert bound.shape.annotations == {"mine": "x"}  # that of the first pod is nothing for the others


def test_a_pod_counts_with_adjusted_amounts() -> None:
    cluster = Cluster(node("a"), node("b"))
    table = cluster.table
    (info,) = cluster.put(pod(cpu="4", memory="1Gi", on="a"))
    less = table.adjust(info, [(CPU, -3000)])
    assert less == ()
    assert (table.requested[CPU, 0], table.nonzero[CPU, 0]) == (1000, 1000)
    with table.what_if() as trial:
        trial.remove(info)
        assert table.requested[CPU, 0] == 0
        trial.add(info, 1)
        assert table.requested[CPU, :2].tolist() == [0, 1000]
    assert table.requested[CPU, :2].tolist() == [1000, 0]
    before = table.adjust(info, [(CPU, -1000)])
    assert table.requested[CPU, 0] == 3000
    table.adjust(info, before)
    assert table.requested[CPU, 0] == 1000
    table.adjust(info, ())
    assert table.requested[CPU, 0] == 4000
    table.remove_pod(info)
    assert table.requested[:, 0].tolist() == [0] * len(table.resources)


def test_pods_of_quotas_that_are_alike_share_cached_results() -> None:
    cluster = Cluster()
    first, second = (cluster.info(pod(labels={LABEL_QUOTA_NAME: name, "app": "x"})).shape for name in "ab")
    other = cluster.info(pod(labels={LABEL_QUOTA_NAME: "a", "app": "y"})).shape
    assert first is not second
    assert first.equivalence_id == second.equivalence_id != other.equivalence_id


def test_a_matrix_grows_with_the_table_and_widens() -> None:
    cluster = Cluster()
    matrix = cluster.table.matrix(2, 3, dtype=np.int64, fill=7)
    matrix.data[1, 2, 3] = 1
    for number in range(9):
        cluster.table.set_node(node(f"n{number}"))
    assert matrix.data.shape == (2, 3, cluster.table.capacity)
    matrix.widen(4, 1)
    assert matrix.data.shape == (4, 3, cluster.table.capacity)
    assert matrix.data[1, 2, 3] == 1
    assert matrix.data.sum() == 7 * matrix.data.size - 6
    with pytest.raises(ValueError, match="1 sizes for 2 axes"):
        matrix.widen(5)


def test_members_of_gangs_that_are_alike_look_alike() -> None:
    cluster = Cluster()

    def shape(gang: str, **more: str) -> Shape:
        notes = {"gang.scheduling.koordinator.sh/name": gang, "gang.scheduling.koordinator.sh/min-available": "2"}
        return cluster.info(pod(annotations=notes if gang else {}, **more)).shape  # type: ignore[arg-type]

    a, b, other, plain, twin = shape("a"), shape("b"), shape("a", cpu="7"), shape(""), shape("a")
    assert a is twin
    assert a is not b
    assert a.equivalence_id == b.equivalence_id
    assert len({a.equivalence_id, other.equivalence_id, plain.equivalence_id}) == 3
    cluster.shapes.keep({b.id})
    again = shape("c")
    assert again.equivalence_id == b.equivalence_id
    cluster.shapes.keep(set())
    assert shape("d").equivalence_id == shape("e").equivalence_id != b.equivalence_id


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30))
def test_a_trial_leaves_no_trace(steps: list[tuple[int, int]]) -> None:
    cluster = Cluster(*(node(f"n{i}") for i in range(4)))
    infos = cluster.put(*(pod(f"p{i}", cpu=f"{i}00m", on=f"n{i % 4}", labels={"n": str(i)}) for i in range(6)))
    counter = cluster.counters.counter("odd", lambda shape: int(shape.labels["n"]) % 2)
    table = cluster.table
    before = table.requested.copy(), table.nonzero.copy(), counter.data.copy(), [dict(pods) for pods in table.pods]
    with table.what_if() as trial:
        for row, number in steps:
            if infos[number].row >= 0:
                trial.remove(infos[number])
            else:
                trial.add(infos[number], row)
        expected = [sum(p.shape.requests["cpu"] for p in pods.values()) for pods in table.pods]
        assert table.requested[CPU, :4].tolist() == expected
        assert counter.data.sum() == sum(int(p.shape.labels["n"]) % 2 for pods in table.pods for p in pods.values())
    assert np.array_equal(before[0], table.requested)
    assert np.array_equal(before[1], table.nonzero)
    assert np.array_equal(before[2], counter.data)
    assert before[3] == [dict(pods) for pods in table.pods]


@given(st.lists(st.sampled_from(("ask", "let go", "sweep", "come", "leave", "node")), max_size=40), st.randoms())
def test_counters_are_right_while_they_are_held_and_gone_after(steps: list[str], rng: random.Random) -> None:
    cluster = Cluster(node("n0"))
    held: dict[int, PodCounter] = {}
    placed: list[PodInfo] = []

    def of(digit: int) -> PodCounter:
        return cluster.counters.counter(digit, lambda shape: int(shape.labels["n"] == str(digit)))

    for step in steps:
        digit = rng.randrange(3)
        match step:
            case "ask":
                held[digit] = of(digit)
            case "let go":
                held.pop(digit, None)
            case "sweep":
                cluster.counters.drop_unused()
                assert len(cluster.counters) == len(held)
            case "come":
                on = rng.choice(cluster.table.names)
                placed += cluster.put(pod(labels={"n": str(digit)}, on=on))
            case "leave" if placed:
                cluster.table.remove_pod(placed.pop(rng.randrange(len(placed))))
            case "node":
                cluster.table.set_node(node(f"n{len(cluster.table.names)}"))
        for number in held:
            expected = [sum(p.shape.labels["n"] == str(number) for p in pods.values()) for pods in cluster.table.pods]
            assert held[number].data[: cluster.table.size].tolist() == expected
