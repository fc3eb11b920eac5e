"""CPU rules from NodeResourceTopology and Node; malformed annotations change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.api import names
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.wire import WireError, convert
from koordlet.qosmanager.rules.cpu import NodeRules, cpu_rules, joined
from tests.koordlet.qosmanager.conftest import CPUSet, make_node

POOLS = '[{"socket":0,"node":0,"cpuset":"1-5,8-23"},{"socket":1,"node":1,"cpuset":"32-47"}]'
ANNOTATIONS = {
    names.ANNOTATION_CPU_SHARED_POOLS: POOLS,
    names.ANNOTATION_BE_CPU_SHARED_POOLS: '[{"socket":0,"node":0,"cpuset":"0-23"},{"socket":1,"node":1,"cpuset":""}]',
    names.ANNOTATION_CPU_MANAGER_POLICY: '{"policy":"static","reservedCPUs":"62"}',
    names.ANNOTATION_SYSTEM_QOS_RESOURCE: '{"cpuset":"60-61"}',
    names.ANNOTATION_NODE_RESERVATION: '{"reservedCPUs":"63"}',
}


def topology(**changes: Any) -> NodeResourceTopology:
    annotations = {**ANNOTATIONS, **changes}
    return convert({"metadata": {"name": "n", "annotations": annotations}, "zones": []}, NodeResourceTopology)


def test_pools_by_numa_node() -> None:
    rules = cpu_rules(topology())
    assert str(joined(rules.shared)) == "1-5,8-23,32-47"
    assert str(joined(rules.shared, [1])) == "32-47"
    assert str(joined(rules.shared, [2])) == ""
    assert str(joined(rules.best_effort)) == "0-23"
    assert rules.kubelet_static


@pytest.mark.parametrize(
    ("annotation", "withheld"),
    [('{"cpuset":"60-61"}', "60-61,63"), ('{"cpuset":"60-61","cpusetExclusive":false}', "63"), ("null", "63")],
)
def test_cpus_of_the_system_are_exclusive_by_default(annotation: str, withheld: str) -> None:
    rules = cpu_rules(topology(**{names.ANNOTATION_SYSTEM_QOS_RESOURCE: annotation}))
    assert str(rules.withheld) == withheld
    assert rules.system == CPUSet.parse("" if annotation == "null" else "60-61")


def test_without_annotations_there_are_no_rules_and_no_error() -> None:
    rules = cpu_rules(convert({"metadata": {"name": "n"}, "zones": []}, NodeResourceTopology))
    assert not rules.shared
    assert not rules.kubelet_static


BROKEN = {
    "pool": {names.ANNOTATION_CPU_SHARED_POOLS: '[{"cpuset":"1-x"}]'},
    "be pool": {names.ANNOTATION_BE_CPU_SHARED_POOLS: "{"},
    "policy": {names.ANNOTATION_CPU_MANAGER_POLICY: "[]"},
    "system": {names.ANNOTATION_SYSTEM_QOS_RESOURCE: '{"cpuset":"a"}'},
    "reservation": {names.ANNOTATION_NODE_RESERVATION: '{"reservedCPUs":"1 2"}'},
}


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN)
def test_one_malformed_annotation_rejects_all_of_them(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="annotation"):
        cpu_rules(topology(**changes))
    rules = NodeRules()
    rules.topology(topology(**changes))
    assert rules.cpu is None
    rules.topology(topology())
    good = rules.cpu
    rules.topology(topology(**changes, other="changed"))
    assert rules.cpu is good is not None


def test_the_ratio_stays_when_malformed_and_when_it_hardly_changes() -> None:
    rules, ratios = NodeRules(), []
    for text in ("1.20", "1.205", "zero", "-1", "1.25", None, "1.0"):
        annotations = {} if text is None else {names.ANNOTATION_CPU_NORMALIZATION_RATIO: text}
        rules.node(make_node(annotations=annotations))
        ratios.append(rules.normalization)
    assert ratios == [1.2, 1.2, 1.2, 1.2, 1.25, 1.0, 1.0]
