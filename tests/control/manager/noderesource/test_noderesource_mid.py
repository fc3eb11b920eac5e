"""Spec 04 §6.5's worked examples."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control.manager.noderesource.world import host_app, make_metric, make_node, make_pod, mid_of, strategy

G = 10**9
NODE = make_node("100", "210G", allocatable=("100", "200G"))
PODS = [make_pod("p", ("20", "40G")), make_pod("b", ("7", "7G"), priority="batch", qos="BE")]


def mid(unallocated: int = 0, cpu: int = 100, memory: int = 100, **more: Any) -> dict[str, Any]:
    return {
        "mid_unallocated_percent": unallocated,
        "mid_cpu_threshold_percent": cpu,
        "mid_memory_threshold_percent": memory,
        **more,
    }


def static(percent: int) -> dict[str, Any]:
    return mid(
        cpu=10,
        memory=20,
        mid_reclaim_mode="static",
        mid_static_cpu_reserved_percent=percent,
        mid_static_memory_reserved_percent=percent,
    )


@pytest.mark.parametrize(
    ("reclaimable", "used", "how", "expected"),
    [
        pytest.param(("10", "15G"), ("20", "45G"), mid(), [10000, 15 * G], id="reclaimable"),
        pytest.param(("15", "30G"), ("30", "50G"), mid(10, 10, 20), [10000, 42 * G], id="thresholds"),
        pytest.param(("15", "30G"), ("30", "50G"), mid(10), [23000, 46 * G], id="unallocated"),
        pytest.param(("20", "20G"), ("90", "200G"), mid(), [10000, 10 * G], id="unused"),
        pytest.param(None, ("30", "50G"), mid(), [0, 0], id="no prediction"),
        pytest.param(("20", "20G"), ("30", None), mid(), [0, 0], id="usage incomplete"),
        pytest.param(("20", "20G"), ("130", "300G"), mid(), [0, 0], id="more used than there is"),
        pytest.param(None, ("30", "50G"), static(10), [10000, 21 * G], id="static"),
        pytest.param(None, ("30", "50G"), static(100), [10000, 42 * G], id="static limited"),
    ],
)
def test_worked_examples(
    reclaimable: tuple[str, str] | None, used: tuple[str, str], how: dict[str, Any], expected: list[int]
) -> None:
    metric = make_metric(node_usage=used, reclaimable=reclaimable, system=("0", "0"))
    assert mid_of(NODE, PODS, metric, strategy(**how)) == expected


@pytest.mark.parametrize(("priority", "expected"), [("koord-prod", [7500, 15500000000]), ("koord-mid", [8000, 16 * G])])
def test_prod_host_applications_reduce_the_unallocated_amount(priority: str, expected: list[int]) -> None:
    metric = make_metric(system=("0", "0"), host_apps=[host_app("5", "15G", priority)])
    assert mid_of(NODE, PODS, metric, strategy(**mid(10))) == expected
