"""The index of reservation labels (spec 06 §4.12)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control.scheduler.config.args import ReservationArgs, ReservationSelectorIndex
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.reservation.selectorindex import LabelIndex, SelectorIndexMetrics
from koordlet.api import names
from tests.control.reservation.reservationbuild import pod, reservation
from tests.control.scheduler.build import node
from tests.control.scheduler.plugins.reservationworld import ReservationWorld

SETTINGS = ReservationSelectorIndex(enabled=True, keys=["team ", "zone", "team", " "], key_prefixes=["pool/", ""])
ARGS = ReservationArgs(reservation_selector_index=SETTINGS)


def labelled(world: ReservationWorld, *labels: dict[str, str]) -> None:
    """A reservation on each node, with these labels."""
    for at, label in enumerate(labels):
        world.put(reservation(f"r{at}", cpu=2, node=f"n{at}", labels=label, allocateOnce=False))


@pytest.mark.parametrize(
    ("selector", "rows"),
    [
        ({"team": "a"}, {0, 1}),
        ({"team": "a", "zone": "x"}, {1}),
        ({"team": "none"}, set()),
        ({"pool/size": "any"}, {2, 3}),
        ({"other": "o"}, None),
        ({}, None),
    ],
)
def test_candidates(selector: dict[str, str], rows: set[int] | None) -> None:
    world = ReservationWorld(8, 8, 8, 8)
    labelled(world, {"team": "a"}, {"team": "a", "zone": "x"}, {"pool/size": "1"}, {"pool/kind": "2", "other": "o"})
    registry = CollectorRegistry()
    index = LabelIndex(SETTINGS, world.book, node_labels=False, metrics=SelectorIndexMetrics.of(registry))
    candidates = index.rows(selector)
    assert (None if candidates is None else set(candidates)) == rows
    result = None if not selector else ("miss" if rows is None else "hit")
    for name in ("hit", "miss"):
        sample = registry.get_sample_value("scheduler_reservation_selector_index_query_total", {"result": name})
        assert (sample or 0) == (result == name)
    count = registry.get_sample_value("scheduler_reservation_selector_index_candidates_count_count")
    assert count == bool(rows)


def test_labels_of_nodes_count_unless_a_gate_excludes_them() -> None:
    world = ReservationWorld(8, 8)
    world.put(node("n1", cpu="8", labels={"team": "a"}))
    labelled(world, {"team": "a"}, {})
    assert set(LabelIndex(SETTINGS, world.book, node_labels=True).rows({"team": "a"}) or ()) == {0, 1}
    assert set(LabelIndex(SETTINGS, world.book, node_labels=False).rows({"team": "a"}) or ()) == {0}


def test_the_page() -> None:
    world = ReservationWorld(8, 8, args=ARGS)
    labelled(world, {"team": "a", "pool/x": "1"}, {"team": "b"})
    page = world.plugin.routes()["reservationSelectorIndex"]
    assert page() == {
        "enabled": True,
        "prefixes": ["pool/"],
        "keys": ["team", "zone"],
        "indexedReservations": 2,
        "byPrefix": {"pool/": {"nodes": 1, "reservations": 1}},
        "byKey": {"team": {"nodes": 2, "reservations": 2}, "zone": {"nodes": 0, "reservations": 0}},
    }
    world.delete(world.reservation("r1"))
    detail = page(detail="true")
    assert detail["byKeyValue"]["team"] == {"a": {"nodes": 1, "reservations": 1, "byNode": {"n0": ["uid-r0"]}}}


LABELS = st.dictionaries(st.sampled_from(("team", "zone", "pool/x", "other")), st.sampled_from(("a", "b")), max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), LABELS | st.none()), max_size=12), LABELS, LABELS, st.booleans())
def test_the_index_changes_no_result(
    changes: list[tuple[int, dict[str, str] | None]], selector: dict[str, str], on_node: dict[str, str], named: bool
) -> None:
    indexed, plain = ReservationWorld(8, 8, 8, args=ARGS), ReservationWorld(8, 8, 8)
    affinity: dict[str, Any] = {"name": "r1"} if named else {"reservationSelector": selector}
    for number, (at, labels) in enumerate(changes):
        for world in (indexed, plain):
            world.put(node("n0", cpu="8", labels=on_node))
            if labels is not None:
                room = reservation(f"r{at}", cpu=2, node=f"n{at % 3}", labels=labels, allocateOnce=False)
                meta = msgspec.structs.replace(room.metadata, resource_version=str(number + 2))
                world.put(msgspec.structs.replace(room, metadata=meta))
            elif f"r{at}" in world.stored[type(reservation())]:
                world.delete(world.reservation(f"r{at}"))
        assert rows_for(indexed, number, affinity) == rows_for(plain, number, affinity)


def rows_for(world: ReservationWorld, number: int, affinity: dict[str, Any]) -> list[int]:
    annotations = {names.ANNOTATION_RESERVATION_AFFINITY: json.dumps(affinity)}
    info = world.cluster.info(pod(f"p{number}", cpu=1, annotations=annotations, labels={"fresh": str(number % 2)}))
    state = CycleState(trial=True)
    prepare(world.cycle.framework, state, info)
    match = world.plugin._match(state, info)
    state.run_undo()
    rows: list[int] = match.rows.tolist()
    return rows
