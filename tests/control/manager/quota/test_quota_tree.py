"""Rules of an ElasticQuota tree: worked examples of spec 04 §16, and properties of all admitted trees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.manager.quota.mutate import QuotaError, mutate_quota
from control.manager.quota.resolve import change_errors, submission_errors
from control.manager.quota.selfchecks import self_error
from control.manager.quota.topology import EXPECTED_TTL_S, QuotaTopology, page
from control.manager.quota.treechecks import TreeRules, tree_error
from control.quota.info import QuotaInfo, Tree
from control.quota.lists import excess, largest, total
from control.quota.podquota import quota_of_pod
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import convert
from tests.fakeclock import FakeClock
from tests.present import present

KEY = "quota.scheduling.koordinator.sh/"
ROOT, DEFAULT = "koordinator-root-quota", "koordinator-default-quota"


def quota(
    name: str,
    labels: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
    namespace: str = "default",
    used: dict[str, str] | None = None,
    **spec: Any,
) -> ElasticQuota:
    return convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {KEY + k: v for k, v in (labels or {}).items()},
                "annotations": {KEY + k: v for k, v in (notes or {}).items()},
            },
            "spec": spec,
            "status": {"used": used or {}},
        },
        ElasticQuota,
    )


def amounts(**resources: Any) -> dict[str, Quantity]:
    return {name: Quantity(str(amount)) for name, amount in resources.items()}


def info(
    name: str,
    parent: str = ROOT,
    *,
    min: dict[str, int] | None = None,
    max: dict[str, int] | None = None,
    guaranteed: dict[str, int] | None = None,
    **more: Any,
) -> QuotaInfo:
    return QuotaInfo(
        name,
        parent,
        min=amounts(**(min or {})),
        max=amounts(**(max or {})),
        guaranteed=amounts(**(guaranteed or {})),
        **more,
    )


def judge(
    proposal: QuotaInfo, *quotas: QuotaInfo, old: QuotaInfo | None = None, pods: bool = False, **rules: Any
) -> str | None:
    return tree_error(Tree(quotas), proposal, old, TreeRules(**rules), lambda: pods)


BIG = {"cpu": 100, "memory": 100}
TOP = info("top", is_parent=True, min={"cpu": 10}, max=BIG)
REFUSED = {
    "child wants more than the parent has": (
        info("c", "top", min={"cpu": 16}, max=BIG), [TOP],
        'spec.min: Invalid value: "cpu=16": the sum of the children of top is cpu=16, its own is cpu=10',
    ),
    "siblings together": (
        info("c", "top", min={"cpu": 6}, max=BIG), [TOP, info("d", "top", min={"cpu": 5}, max=BIG)],
        'spec.min: Invalid value: "cpu=6": the sum of the children of top is cpu=11, its own is cpu=10',
    ),
    "parent without min": (
        info("c", "top", min={"cpu": 19}, max=BIG), [info("top", is_parent=True, max=BIG)],
        "spec.min: Forbidden: cpu of c is not in spec.min of its parent top",
    ),
    "own children": (
        info("top", is_parent=True, min={"cpu": 1}, max=BIG), [info("d", "top", min={"cpu": 5}, max=BIG)],
        'spec.min: Invalid value: "cpu=1": the sum of its children is cpu=5',
    ),
    "unknown parent": (
        info("c", "no", max=BIG), [], f'labels.{KEY}parent: Invalid value: "no": there is no such quota',
    ),
    "parent is a leaf": (
        info("c", "leaf", max=BIG), [info("leaf", max=BIG)],
        f'labels.{KEY}parent: Invalid value: "leaf": it is not labelled {KEY}is-parent=true',
    ),
    "below itself": (
        info("top", "c", is_parent=True, max=BIG), [TOP, info("c", "top", is_parent=True, max=BIG)],
        f'labels.{KEY}parent: Invalid value: "c": it is a descendant of this quota',
    ),
    "other keys": (
        info("c", "top", max={"cpu": 1}), [TOP], "spec.max: Forbidden: the keys of c and of its parent top differ",
    ),
    "other keys of a child": (
        info("top", is_parent=True, max={"cpu": 1}), [info("c", "top", max=BIG)],
        "spec.max: Forbidden: the keys of c and of its parent top differ",
    ),
    "other tree": (
        info("c", "top", max=BIG, tree="t"), [TOP],
        f"labels.{KEY}tree-id: Invalid value: \"t\": the related quota top is in tree ''",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("proposal", "quotas", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused_quotas(proposal: QuotaInfo, quotas: list[QuotaInfo], expected: str) -> None:
    assert judge(proposal, *quotas) == expected


ADMITTED = {
    "root": (info(ROOT, "", min={"cpu": 99}), []),
    "leaf below the root": (info("a", min={"cpu": 99}, max={"gpu": 1}), []),
    "fits": (
        info("c", "top", min={"cpu": 16, "memory": 12800}, max=BIG),
        [info("top", is_parent=True, min={"cpu": 19, "memory": 51200}, max=BIG)],
    ),
    "forced": (info("c", "top", min={"cpu": 16}, max=BIG, force=True), [TOP]),
    "tree root": (info("c", "top", min={"cpu": 16}, max=BIG, is_tree_root=True), [TOP]),
}


@pytest.mark.parametrize(("proposal", "quotas"), ADMITTED.values(), ids=ADMITTED)
def test_admitted_quotas(proposal: QuotaInfo, quotas: list[QuotaInfo]) -> None:
    assert judge(proposal, *quotas) is None


def test_a_gate_lets_a_child_lack_keys() -> None:
    assert judge(info("c", "top", max={"cpu": 1}), TOP, keys_may_differ=True) is None
    assert judge(info("c", "top", max={"gpu": 1}), TOP, keys_may_differ=True) is not None


def test_immutable_fields() -> None:
    leaf, parent = info("top", max=BIG), TOP
    child = info("c", "top", max=BIG)
    assert judge(leaf, parent, child, old=parent) == f"labels.{KEY}is-parent: Forbidden: quota top has children (c)"
    assert judge(parent, leaf, old=leaf, pods=True) == f"labels.{KEY}is-parent: Forbidden: quota top has pods"
    assert judge(parent, leaf, old=leaf, pods=False) is None
    assert judge(parent, leaf, old=leaf, pods=True, parents_may_have_pods=True) is None
    moved = info("top", is_parent=True, max=BIG, tree="t")
    assert judge(moved, parent, old=parent) == f'labels.{KEY}tree-id: Invalid value: "t": field is immutable'


@pytest.mark.parametrize(
    ("own_min", "refused"), [(5, False), (6, False), (7, False), (8, True)], ids=["within", "equal", "fits", "too much"]
)
def test_guarantees(own_min: Any, refused: Any) -> None:
    top = info("top", is_parent=True, is_tree_root=True, tree="t", min={"cpu": 10}, max=BIG, guaranteed={"cpu": 10})
    sibling = info("s", "top", tree="t", max=BIG, guaranteed={"cpu": 3})
    own = info("c", "top", tree="t", min={"cpu": own_min}, max=BIG, guaranteed={"cpu": 6})
    problem = judge(own, top, sibling, check_guarantee=True)
    assert (problem is not None) is refused
    if problem:
        assert problem == (
            'spec.min: Invalid value: "cpu=8": is not guaranteed by any ancestor; top would have to guarantee cpu=11'
        )
    assert judge(own, top, sibling) is None, "without the gate"


SELF = {
    "fine": (quota("q", min={"cpu": "1"}, max={"cpu": "2"}), None),
    "negative": (quota("q", max={"cpu": "-1"}), 'spec.max: Invalid value: "cpu=-1": must not be negative'),
    "min without max": (quota("q", min={"cpu": "1"}), "spec.min: Forbidden: cpu is not in spec.max"),
    "min above max": (
        quota("q", min={"cpu": "3"}, max={"cpu": "2"}), 'spec.min: Invalid value: "cpu=3": is more than spec.max cpu=2',
    ),
    "weight": (
        quota("q", notes={"shared-weight": '{"cpu":"-1"}'}, max={"cpu": "1"}),
        f'annotations.{KEY}shared-weight: Invalid value: "cpu=-1": must not be negative',
    ),
    "used key gone": (
        quota("q", notes={"max-strict-check-resource-keys": '["gpu"]'}, used={"gpu": "1"}, max={"cpu": "1"}),
        "spec.max: Forbidden: gpu is in use and cannot be removed",
    ),
    "used is more": (
        quota("q", notes={"max-strict-check-resource-keys": '["cpu"]'}, used={"cpu": "2"}, max={"cpu": "1"}),
        'spec.max: Invalid value: "cpu=1": is less than the used amount cpu=2',
    ),
    "used but not strict": (quota("q", used={"cpu": "2"}, max={"cpu": "1"}), None),
}  # fmt: skip


@pytest.mark.parametrize(("proposal", "expected"), SELF.values(), ids=SELF)
def test_a_quota_by_itself(proposal: Any, expected: Any) -> None:
    assert self_error(proposal) == expected


@pytest.mark.parametrize("key", ["shared-weight", "namespaces", "max-strict-check-resource-keys"])
def test_a_malformed_annotation_is_named(key: Any) -> None:
    assert key in (self_error(quota("q", notes={key: "{["})) or "")


def raw(proposal: Any) -> dict[str, Any]:
    return {"metadata": {"name": proposal.metadata.name, "x": 1}, "spec": {"y": 2}}


def test_defaults_of_a_new_quota() -> None:
    new_quota = quota("q", max={"cpu": "10", "memory": "20"})
    document = raw(new_quota)
    assert mutate_quota(document, new_quota, Tree()) == amounts(cpu=10, memory=20)
    assert document == {
        "metadata": {
            "name": "q",
            "x": 1,
            "labels": {KEY + "parent": ROOT},
            "annotations": {KEY + "shared-weight": '{"cpu":"10","memory":"20"}'},
        },
        "spec": {"y": 2},
    }


def test_a_shared_weight_gets_the_keys_of_max() -> None:
    new_quota = quota(
        "q", {"parent": ROOT}, {"shared-weight": '{"cpu":"5","gpu":"1"}'}, max={"cpu": "10", "memory": "20"}
    )
    document = raw(new_quota)
    assert mutate_quota(document, new_quota, Tree()) is None
    assert document["metadata"]["annotations"] == {KEY + "shared-weight": '{"cpu":"5","memory":"20"}'}
    same = quota("q", {"parent": ROOT}, {"shared-weight": '{"cpu": 5}'}, max={"cpu": "10"})
    document = raw(same)
    mutate_quota(document, same, Tree())
    assert document == raw(same)


def test_the_tree_id_defaults_to_the_parents() -> None:
    tree = Tree([info("top", tree="t"), info("other")])
    for parent, expected in (("top", {KEY + "tree-id": "t"}), ("other", {})):
        new_quota = quota("q", {"parent": parent}, {"shared-weight": "{}"})
        document = raw(new_quota)
        mutate_quota(document, new_quota, tree)
        assert document["metadata"].get("labels", {}) == expected
    with pytest.raises(QuotaError, match=r'parent: Invalid value: "no": there is no such quota'):
        mutate_quota({}, quota("q", {"parent": "no"}), tree)
    with pytest.raises(QuotaError, match="shared-weight"):
        mutate_quota({}, quota("q", {"parent": "top"}, {"shared-weight": "["}), tree)
    untouched: dict[str, object] = {}
    assert mutate_quota(untouched, quota(ROOT), tree) is None
    assert untouched == {}


async def test_expected_writes_count_until_they_are_delivered_or_expire() -> None:
    clock = FakeClock()
    topology = QuotaTopology(clock)
    document = quota("q", max={"cpu": "1"})
    topology.expect("q", "default/q", QuotaInfo.of(document))
    assert topology.tree.get("q") is not None
    assert not topology.taken("q", "default/q"), "it may have been refused elsewhere"
    assert topology.taken("q", "other/q")
    await clock.advance(EXPECTED_TTL_S + 1)
    assert topology.tree.get("q") is None
    assert not topology.taken("q", "other/q")
    topology.put(document)
    assert topology.taken("q", "default/q")
    topology.expect("q", "default/q", None)
    assert topology.tree.get("q") is None
    assert not topology.taken("q", "default/q")
    topology.put(document)
    assert topology.tree.get("q") is not None, "the informer's word is the last"
    topology.remove(quota("q", namespace="other"))
    assert topology.tree.get("q") is not None, "another object of the same name"
    topology.remove(document)
    assert topology.tree.get("q") is None


def test_status_changes_do_not_rebuild_the_tree() -> None:
    topology = QuotaTopology()
    topology.put(quota("q", max={"cpu": "1"}))
    before = topology.tree
    topology.put(quota("q", max={"cpu": "1"}, notes={"runtime": '{"cpu":"1"}'}, used={"cpu": "1"}))
    assert topology.tree is before
    topology.put(quota("q", max={"cpu": "2"}))
    assert present(topology.tree.get("q")).max == amounts(cpu=2)


def test_unknown_parents_have_children() -> None:
    topology = QuotaTopology()
    topology.put(quota("c", {"parent": "no"}))
    topology.put(quota("c", {"parent": "other"}))
    assert [each.name for each in topology.tree.children("other")] == ["c"]
    assert topology.tree.children("no") == []


def test_the_debug_page() -> None:
    tree = Tree([info("top", is_parent=True, max={"cpu": 2}), info("c", "top", allow_lent=False)])
    assert page(tree) == {
        "quotaInfoMap": {
            "c": {
                "name": "c", "parentName": "top", "isParent": False, "allowLentResource": False, "max": {}, "min": {},
            },
            "top": {
                "name": "top", "parentName": ROOT, "isParent": True, "allowLentResource": True,
                "max": {"cpu": "2"}, "min": {},
            },
        },
        "quotaHierarchyInfo": {"c": [], ROOT: ["top"], "top": ["c"]},
    }  # fmt: skip
    assert page(Tree())["quotaHierarchyInfo"] == {ROOT: []}


RESOLVED = {
    "label": ({KEY + "name": "mine"}, "team", {}, False, "mine"),
    "quota of the namespace's name": ({}, "team", {}, False, "team"),
    "bound by annotation, first by name": ({}, "b", {"b": ["z", "a"]}, False, "a"),
    "default": ({}, "other", {}, False, DEFAULT),
    "default disabled": ({}, "team", {}, True, ""),
}


@pytest.mark.parametrize(("labels", "namespace", "bound", "disabled", "expected"), RESOLVED.values(), ids=RESOLVED)
def test_quota_of_a_pod(labels: Any, namespace: Any, bound: Any, disabled: Any, expected: Any) -> None:
    quota = quota_of_pod(
        labels.get(KEY + "name", ""),
        namespace,
        exists=lambda space, name: (space, name) == ("team", "team"),
        bound=lambda space: bound.get(space, []),
        default_disabled=disabled,
    )
    assert quota == expected


def test_parent_quotas_accept_no_pods() -> None:
    tree = Tree([TOP, info("leaf", "top")])
    assert submission_errors(tree, "top") == [
        f"labels.{KEY}name: Forbidden: quota top is a parent quota, pods must be submitted to one of its children"
    ]
    for name in ("leaf", "", DEFAULT, "unknown"):
        assert submission_errors(tree, name) == []


def test_preemptible_must_not_change() -> None:
    new, old = (convert({"metadata": {"labels": {KEY + "preemptible": v}}}, Pod) for v in ("false", "true"))  # type: ignore[var-annotated]
    assert change_errors(new, old) == [f'labels.{KEY}preemptible: Invalid value: "false": field is immutable']
    assert change_errors(new, new) == []


# --- laws ----------------------------------------------------------------------------------------------

lists = st.dictionaries(st.sampled_from("abc"), st.integers(0, 20).map(Quantity.of), max_size=3)


@given(lists, lists)
def test_laws_of_lists(a: Any, b: Any) -> None:
    assert excess(a, total([a, b])) == []
    assert excess(a, largest(a, b)) == excess(b, largest(a, b)) == []
    assert (excess(a, b) == []) == all(amount <= b.get(name, Quantity.of(0)) for name, amount in a.items())


proposals = st.builds(
    lambda name, parent, is_parent, lower: info(
        name, parent, is_parent=is_parent, min={"cpu": lower}, max={"cpu": 50}, tree=""
    ),
    st.sampled_from("abcdef"),
    st.sampled_from([ROOT, *"abcdef"]),
    st.booleans(),
    st.integers(0, 50),
)


@settings(max_examples=200)
@given(st.lists(proposals, max_size=25))
def test_admitted_quotas_form_a_tree(proposed: Any) -> None:
    """Whatever is proposed in whatever order: what the rules let in is a tree whose sums fit at every level."""
    topology = QuotaTopology()
    for each in proposed:
        tree = topology.tree
        if tree_error(tree, each, tree.get(each.name), TreeRules()) is None:
            topology.expect(each.name, each.name, each)
        tree = topology.tree
        for admitted in tree.quotas.values():
            if admitted.parent != ROOT:
                above = tree.get(admitted.parent)
                assert above is not None and above.is_parent
                seen, node = set(), admitted
                while node is not None and node.parent != ROOT:
                    assert node.name not in seen, "no circles"
                    seen.add(node.name)
                    node = tree.get(node.parent)  # type: ignore[assignment]
            if admitted.is_parent:
                assert not excess(total(child.min for child in tree.children(admitted.name)), admitted.min)
            else:
                assert tree.children(admitted.name) == []
