"""A pod's own resctrl group: the worked example of spec 03 §4.11, other pods, its removal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.runtimehooks.hooks.resctrlpods import ORPHAN_GRACE_S, ResctrlPods
from koordlet.runtimehooks.stages import HookContext, HookStage
from koordlet.system.resctrl import AMD, INTEL, ResctrlFacts
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

KEY = "node.koordinator.sh/resctrl"


def facts(vendor: str = INTEL, groups: tuple[str, ...] = ()) -> ResctrlFacts:
    return ResctrlFacts(vendor, caches=(0, 1), bandwidths=(0, 1), cbm=0x7FF, groups=groups)


def pod(resctrl: dict[str, Any] | str, name: str = "p", **fields: Any) -> PodView:
    text = resctrl if isinstance(resctrl, str) else json.dumps(resctrl)
    return make_pod(name, annotations={KEY: text}, **fields)


def values(strategy: ResctrlPods, view: NodeView) -> dict[tuple[str, str], str]:
    decision = strategy.decide(view)
    assert decision is not None
    return {(u.setting.resource.removeprefix("resctrl."), u.setting.device): u.value for u in decision.updates}  # type: ignore[misc]


def llc(*bounds: int, per_cache: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"schemata": {"range": list(bounds)}, "schemataPerCache": list(per_cache)}


def at(cache: int, *bounds: int) -> dict[str, Any]:
    return {"cacheID": cache, "range": list(bounds)}


def mb(percent: int, per_cache: Sequence[dict[str, int]] = ()) -> dict[str, Any]:
    return {"schemata": {"percent": percent}, "schemataPerCache": list(per_cache)}


@pytest.mark.parametrize(
    ("vendor", "annotation", "l3", "bandwidth"),
    [
        pytest.param(INTEL, {"llc": llc(0, 30), "mb": mb(20)}, "0=f;1=f", "0=20;1=20", id="the example"),
        pytest.param(AMD, {"llc": llc(0, 30), "mb": mb(20)}, "0=f;1=f", "0=32;1=32", id="AMD"),
        pytest.param("ARM", {"llc": llc(0, 30), "mb": mb(20)}, "0=f;1=f", None, id="others have no bandwidth"),
        pytest.param(INTEL, {"mb": mb(35, [{"cacheID": 0, "percent": 80}])}, None, "0=80;1=40", id="by cache"),
        pytest.param(INTEL, {"mb": mb(0, [{"cacheid": 1, "percent": 80}])}, None, None, id="one cache is left out"),
        pytest.param(
            INTEL, {"llc": llc(0, 30, per_cache=[at(1, 50, 100)])}, "0=f;1=7c0", None, id="ranges by cache"
        ),
        pytest.param(
            INTEL, {"llc": llc(0, 30, per_cache=[at(0, 9), at(1, 50, 100)])},
            "0=f;1=f", None, id="a bad range ends the reading",
        ),
        pytest.param(INTEL, {"llc": llc(30, 30)}, None, None, id="an empty range"),
        pytest.param(INTEL, {"llc": llc(0, 30, per_cache=[at(7, 0, 9)])}, "0=f;1=f", None, id="no such cache"),
        pytest.param(INTEL, {"mb": mb(200)}, None, None, id="more than all"),
        pytest.param(INTEL, {}, None, None, id="nothing"),
    ],
)  # fmt: skip
def test_lines(vendor: str, annotation: dict[str, Any], l3: str | None, bandwidth: str | None) -> None:
    resctrl_pod = pod(annotation)
    settings = values(ResctrlPods(lambda: facts(vendor)), make_view(pods=(resctrl_pod,)))
    name = f"koordlet-{resctrl_pod.meta.uid}"
    lines = {key: text for key, text in (("L3", l3), ("MB", bandwidth)) if text is not None}
    assert settings == {
        ("mount", ""): "on", ("group", name): "present", ("tasks", name): resctrl_pod.meta.cgroup_dir,
        **{(line, name): text for line, text in lines.items()},
    }  # fmt: skip


def test_only_running_pods_with_a_valid_annotation_have_a_group() -> None:
    pods = (make_pod("plain"), pod("{", "broken"), pod({}, "ended", phase="Failed"))
    assert present(ResctrlPods(lambda: facts()).decide(make_view(pods=pods))).updates == ()


def test_a_changed_annotation_is_written_and_the_group_of_a_removed_pod_restored() -> None:
    strategy = ResctrlPods(lambda: facts())
    name = ("L3", "koordlet-uid-p")
    assert values(strategy, make_view(pods=(pod({"llc": llc(0, 30)}),)))[name] == "0=f;1=f"
    assert values(strategy, make_view(pods=(pod({"llc": llc(0, 100)}),)))[name] == "0=7ff;1=7ff"
    assert values(strategy, make_view()) == {}


def test_groups_of_an_earlier_koordlet_are_removed_after_a_grace_period() -> None:
    strategy = ResctrlPods(lambda: facts(groups=("BE", "koordlet-old", "koordlet-uid-p", "other")))
    resctrl_pod = pod({})
    assert ("group", "koordlet-old") not in values(strategy, make_view(now=100.0, pods=(resctrl_pod,)))
    settings = values(strategy, make_view(now=100.0 + ORPHAN_GRACE_S, pods=(resctrl_pod,)))
    assert settings["group", "koordlet-old"] == ""
    assert settings["group", "koordlet-uid-p"] == "present"
    assert not {("group", "BE"), ("group", "other")} & settings.keys()


def test_the_hook_names_the_group() -> None:
    groups: tuple[str, ...] = ("koordlet-uid-p",)
    strategy, resctrl_pod = ResctrlPods(lambda: facts(groups=groups)), pod({"llc": llc(0, 30), "mb": mb(20)})
    context, view = HookContext(resctrl_pod), make_view()
    for stage in (HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_CREATE_CONTAINER):
        assert strategy.answer(stage, context, view).closid == "koordlet-uid-p"
    assert strategy.answer(HookStage.PRE_REMOVE_RUN_POD_SANDBOX, context, view).closid is None
    assert strategy.answer(HookStage.PRE_RUN_POD_SANDBOX, HookContext(make_pod("x")), view).closid is None
    groups = ()
    assert strategy.answer(HookStage.PRE_CREATE_CONTAINER, context, view).closid is None, (
        "a group that does not exist would prevent the start"
    )
