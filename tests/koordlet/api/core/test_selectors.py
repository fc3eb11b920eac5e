"""Label selectors, node selector terms, taints and tolerations."""

from typing import Any

import pytest

from koordlet.api.core import NodeSelectorTerm, Taint, Toleration
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector, SelectorError

LABELS = {"app": "web", "tier": "front", "cores": "8", "empty": ""}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "back"}}, False),
        ({"matchLabels": {"missing": ""}}, False),
        ({"matchExpressions": [expression("app", "In", "web", "db")]}, True),
        ({"matchExpressions": [expression("app", "In", "db")]}, False),
        ({"matchExpressions": [expression("missing", "In", "x")]}, False),
        ({"matchExpressions": [expression("app", "NotIn", "db")]}, True),
        ({"matchExpressions": [expression("app", "NotIn", "web")]}, False),
        ({"matchExpressions": [expression("missing", "NotIn", "x")]}, True),
        ({"matchExpressions": [expression("empty", "Exists")]}, True),
        ({"matchExpressions": [expression("missing", "Exists")]}, False),
        ({"matchExpressions": [expression("missing", "DoesNotExist")]}, True),
        ({"matchExpressions": [expression("app", "DoesNotExist")]}, False),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [expression("tier", "In", "back")]}, False),
    ],
    ids=str,
)
def test_label_selector(selector: dict[str, Any], matches: bool) -> None:
    assert wire.convert(selector, LabelSelector).matches(LABELS) is matches


@pytest.mark.parametrize(
    "bad",
    [
        expression("app", "In"),
        expression("app", "NotIn"),
        expression("app", "Exists", "x"),
        expression("app", "DoesNotExist", "x"),
        expression("app", "Gt", "1"),
        expression("app", "in", "x"),
        expression("app", "NotIn", "bad value!"),
        expression("app", "NotIn", "web", "v" * 64),
        expression("app", "In", "-web"),
    ],
    ids=lambda e: f"{e['operator']}-{e['values']}",
)
def test_malformed_label_selector(bad: dict[str, Any]) -> None:
    """Reported even when the labels alone would already say no."""
    selector: LabelSelector = wire.convert({"matchLabels": {"app": "other"}, "matchExpressions": [bad]}, LabelSelector)
    with pytest.raises(SelectorError, match=r"matchExpressions\[app\]"):
        selector.matches(LABELS)


@pytest.mark.parametrize("key", ["", "bad key!", "k" * 64, "/app", "UPPER.example/app", "a/b/c", "p" * 254 + "/app"])
def test_invalid_label_keys(key: str) -> None:
    """Raise an error instead of matching all objects."""
    for bad in ({"matchExpressions": [expression(key, "DoesNotExist")]}, {"matchLabels": {key: "web"}}):
        with pytest.raises(SelectorError, match="is not a valid label key"):
            wire.convert(bad, LabelSelector).matches(LABELS)


def test_invalid_value_in_match_labels() -> None:
    for value in ("bad value!", "v" * 64, "web-"):
        with pytest.raises(SelectorError, match="is not a valid label value"):
            wire.convert({"matchLabels": {"app": value}}, LabelSelector).matches(LABELS)


def test_valid_label_keys_and_values() -> None:
    labels = {"example.com/app.kubernetes_io-x": "v" * 63, "k" * 63: "A_b.C-9"}
    assert wire.convert({"matchLabels": labels}, LabelSelector).matches(labels)


def test_empty_selector() -> None:
    assert LabelSelector().matches(LABELS) and LabelSelector().matches({})
    assert LabelSelector().is_empty()


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        ({}, False),
        ({"matchExpressions": [expression("cores", "Gt", "7")]}, True),
        ({"matchExpressions": [expression("cores", "Gt", "8")]}, False),
        ({"matchExpressions": [expression("cores", "Lt", "9")]}, True),
        ({"matchExpressions": [expression("app", "Gt", "7")]}, False),
        ({"matchExpressions": [expression("cores", "Gt", "7", "6")]}, False),
        ({"matchExpressions": [expression("cores", "Gt", " 7")]}, False),
        ({"matchExpressions": [expression("missing", "NotIn", "x")]}, True),
        ({"matchExpressions": [expression("missing", "Exists")]}, False),
        ({"matchExpressions": [expression("app", "Like", "web")]}, False),
        ({"matchFields": [expression("metadata.name", "In", "n1")]}, True),
        ({"matchFields": [expression("metadata.name", "In", "n2")]}, False),
        ({"matchFields": [expression("metadata.name", "In", "n1")],
          "matchExpressions": [expression("app", "DoesNotExist")]}, False),
    ],
    ids=str,
)  # fmt: skip
def test_node_selector_term(term: dict[str, Any], matches: bool) -> None:
    assert wire.convert(term, NodeSelectorTerm).matches(LABELS, {"metadata.name": "n1"}) is matches


TAINT = Taint(key="k", value="v", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({}, False),
        ({"value": "v"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Nonsense", "value": "v"}, False),
    ],
    ids=str,
)
def test_toleration(toleration: dict[str, str], tolerates: bool) -> None:
    assert wire.convert(toleration, Toleration).tolerates(TAINT) is tolerates
