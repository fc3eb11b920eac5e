"""A bad section of NodeSLO keeps its last good value; the others count; the Node says so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import slocheck
from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.encoding.wire import Time, convert
from koordlet.statesinformer.nodeslo.condition import CONDITION_TYPE, INVALID_REASON, condition, message
from koordlet.statesinformer.nodeslo.effective import AcceptedNodeSLO, effective


def spec(**sections: Any) -> NodeSLOSpec:
    return convert(sections, NodeSLOSpec)


def threshold(**fields: Any) -> dict[str, Any]:
    return {"resourceUsedThresholdWithBE": {"enable": True, **fields}}


def test_the_last_valid_section_stays_and_other_sections_take_effect() -> None:
    accepted = AcceptedNodeSLO()
    accepted.update(spec(**threshold(cpuSuppressThresholdPercent=50)))
    in_force = accepted.update(
        spec(**threshold(cpuSuppressThresholdPercent=150), cpuBurstStrategy={"policy": "auto"},
             hostApplications=[{"name": "a"}])
    )  # fmt: skip
    assert in_force.resource_used_threshold_with_be is not None
    assert in_force.resource_used_threshold_with_be.cpu_suppress_threshold_percent == 50
    assert in_force.cpu_burst_strategy is not None
    assert in_force.cpu_burst_strategy.policy == "auto"
    assert [app.name for app in in_force.host_applications] == ["a"]
    assert list(accepted.problems) == ["resourceUsedThresholdWithBE"]
    again = accepted.update(spec(**threshold(cpuSuppressThresholdPercent=151), hostApplications=[{"name": ""}]))
    assert again.resource_used_threshold_with_be is not None
    assert again.resource_used_threshold_with_be.cpu_suppress_threshold_percent == 50
    assert [app.name for app in again.host_applications] == ["a"]
    assert again.cpu_burst_strategy is not None
    assert again.cpu_burst_strategy.policy == "none", "left out of a good section is the default"
    good = accepted.update(spec(**threshold(cpuSuppressThresholdPercent=80)))
    assert good.resource_used_threshold_with_be is not None
    assert good.resource_used_threshold_with_be.cpu_suppress_threshold_percent == 80
    assert accepted.problems == {}


def test_without_a_valid_section_or_object_the_defaults_are_in_force() -> None:
    accepted = AcceptedNodeSLO()
    bad = spec(**threshold(cpuSuppressPolicy="shares"))
    assert accepted.update(bad) == effective(None)
    assert accepted.update(bad) is accepted.update(bad)
    accepted.update(spec(**threshold()))
    assert accepted.update(None) == effective(None) and accepted.problems == {}
    assert accepted.update(bad) == effective(None), "a deleted NodeSLO is no last good one"


percent = st.integers(-50, 150)
sections = st.fixed_dictionaries(
    {},
    optional={
        "resourceUsedThresholdWithBE": st.fixed_dictionaries(
            {}, optional={"cpuSuppressThresholdPercent": percent, "memoryEvictThresholdPercent": percent,
                          "memoryEvictLowerPercent": percent, "cpuSuppressPolicy": st.sampled_from(["cpuset", "x"])},
        ),
        "cpuBurstStrategy": st.fixed_dictionaries(
            {}, optional={"policy": st.sampled_from(["auto", "none", "y"]), "cfsQuotaBurstPercent": st.integers(0, 300)}
        ),
        "systemStrategy": st.fixed_dictionaries({}, optional={"watermarkScaleFactor": st.integers(-1, 500)}),
    },
)  # fmt: skip


@given(st.lists(sections, max_size=8))
def test_only_valid_sections_are_ever_in_force(story: list[dict[str, Any]]) -> None:
    accepted = AcceptedNodeSLO()
    for given_sections in story:
        given_spec = spec(**given_sections)
        bad = slocheck.problems(given_spec)
        in_force = accepted.update(given_spec)
        assert accepted.problems == bad
        whole = effective(given_spec)
        for name, section in slocheck.SECTIONS.items():
            now = getattr(in_force, section.attribute)
            if name not in bad:
                assert now == getattr(whole, section.attribute)
        assert slocheck.problems(in_force) == {}, "what is merged can be acted on as well"


def node(*conditions: dict[str, str]) -> Node:
    return convert({"metadata": {"name": "n"}, "status": {"conditions": list(conditions)}}, Node)


NOW, BEFORE = Time.from_unix(2000), Time.from_unix(1000)
PROBLEM = {"systemStrategy.watermarkScaleFactor": "0 is less than 1"}
BAD = {"type": CONDITION_TYPE, "status": "True", "reason": INVALID_REASON, "lastTransitionTime": str(BEFORE),
       "message": f"the last valid values stay in force: {message(PROBLEM)}"}  # fmt: skip


@pytest.mark.parametrize(
    ("problems", "shown", "expected"),
    [
        ({}, (), None),
        (PROBLEM, (), ("True", NOW)),
        (PROBLEM, (BAD,), None),
        ({"a": "b"}, (BAD,), ("True", BEFORE)),
        ({}, (BAD,), ("False", NOW)),
        ({}, ({**BAD, "status": "False"},), None),
        (PROBLEM, ({"type": "Ready", "status": "True"},), ("True", NOW)),
    ],
    ids=["good", "new", "said", "another-field", "mended", "mended-and-said", "others-stay"],
)
def test_the_condition_is_written_when_it_differs(
    problems: dict[str, str], shown: tuple[dict[str, str], ...], expected: tuple[str, Time] | None
) -> None:
    written = condition(problems, node(*shown), NOW)
    assert (None if written is None else (written.status, written.last_transition_time)) == expected
    if written is not None and problems:
        assert next(iter(problems)) in written.message


def test_a_message_names_five_fields_and_counts_the_rest() -> None:
    assert message({f"f{n}": "bad" for n in range(7)}).endswith("f4: bad; and 2 more")
