"""The picture has what the node's objects say about CPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from koordlet.qosmanager.cpurules import CPURules, NodeRules
from koordlet.qosmanager.look import look
from koordlet.statesinformer.model import Workloads
from koordlet.statesinformer.nodeslo import effective
from koordlet.system.naming import CgroupDriver

from .conftest import make_node


@pytest.mark.parametrize("static", [True, False])
def test_rules_of_the_node(static) -> None:
    rules = NodeRules()
    rules.cpu, rules.normalization = CPURules(kubelet_static=static), 1.5
    node = SimpleNamespace(object=make_node())
    states = SimpleNamespace(node=node, slo=effective(None), workloads=Workloads(), driver=CgroupDriver.CGROUPFS)
    view = look(
        states, None, None, lambda setting: None,  # type: ignore[arg-type]
        average=lambda kind, labels, seconds: None, now=0.0, collect_interval=1.0, rules=rules, normalized=static,
    )  # fmt: skip
    assert view is not None
    assert (view.cpu_rules, view.kubelet_static, view.normalization) == (rules.cpu, static, 1.5)
    assert view.normalized is static
