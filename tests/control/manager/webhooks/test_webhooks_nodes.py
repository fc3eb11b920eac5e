"""Amplified allocatable, and labels that two strategies would take (spec 04 §14)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.webhooks.nodes import amplified, label_conflict
from koordlet.api.encoding.wire import WireError

RATIO = "node.koordinator.sh/resource-amplification-ratio"
RAW = "node.koordinator.sh/raw-allocatable"


def node(ratio: str | None = None, raw: str | None = None, **allocatable: Any) -> dict[str, Any]:
    annotations = {key: value for key, value in ((RATIO, ratio), (RAW, raw)) if value is not None}
    return {
        "metadata": {"name": "n", "annotations": annotations},
        "status": {"allocatable": allocatable, "capacity": {"cpu": "64"}, "x-unknown": 1},
    }


EXAMPLES = {
    "1.5": (node('{"cpu":1.5}', cpu="1000m"), node(cpu="1000m"), node('{"cpu":1.5}', '{"cpu":"1"}', cpu="1500m")),
    "0.5": (node('{"cpu":0.5}', cpu="1000m"), node(cpu="1"), node('{"cpu":0.5}', '{"cpu":"1"}', cpu="1000m")),
    "1": (node('{"cpu":1}', cpu="1000m"), node(cpu="1"), node('{"cpu":1}', '{"cpu":"1"}', cpu="1000m")),
    "2, raw known": (
        node('{"cpu":2}', '{"cpu":"1"}', cpu="1000m"), node(cpu="1"), node('{"cpu":2}', '{"cpu":"1"}', cpu="2"),
    ),
    "no ratio": (node(None, "{}", cpu="1000m"), node(cpu="1"), node(cpu="1000m")),
    "no ratio, no raw": (node(cpu="1000m"), node(cpu="1"), node(cpu="1000m")),
    "no allocatable": (node('{"cpu":2}'), node(), node('{"cpu":2}')),
    "not in raw": (
        node('{"cpu":2,"memory":3}', '{"cpu":"1"}', cpu="1", memory="2Gi"), node(cpu="1", memory="2Gi"),
        node('{"cpu":2,"memory":3}', '{"cpu":"1"}', cpu="2", memory="2Gi"),
    ),
    "kubelet writes again": (
        node('{"cpu":1.5}', '{"cpu":"2"}', cpu="1"), node('{"cpu":1.5}', '{"cpu":"2"}', cpu="3"),
        node('{"cpu":1.5}', '{"cpu":"1"}', cpu="1500m"),
    ),
    "malformed raw is replaced": (
        node('{"cpu":2}', "[]", cpu="2"), node('{"cpu":2}', "[]", cpu="1"), node('{"cpu":2}', '{"cpu":"2"}', cpu="4"),
    ),
    "others write": (
        node('{"cpu":1.5}', '{"cpu":"2"}', cpu="3", pods="5"), node('{"cpu":1.5}', '{"cpu":"2"}', cpu="3"),
        node('{"cpu":1.5}', '{"cpu":"2"}', cpu="3", pods="5"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("new", "old", "expected"), EXAMPLES.values(), ids=EXAMPLES)
def test_amplification(new: dict[str, Any], old: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(new)
    assert amplified(new, old) == expected
    assert new == before


STALE = {
    "stored without the webhook": (
        node('{"cpu":2}', '{"cpu":"1"}', cpu="3"),
        node('{"cpu":2}', '{"cpu":"3"}', cpu="6"),
    ),
    "the same amounts": (node('{"cpu":2}', '{"cpu":"1"}', cpu="1"), node('{"cpu":2}', '{"cpu":"1"}', cpu="2")),
    "amplified already": (node('{"cpu":2}', '{"cpu":"1"}', cpu="2"), node('{"cpu":2}', '{"cpu":"1"}', cpu="2")),
}


@pytest.mark.parametrize(("stored", "expected"), STALE.values(), ids=STALE)
def test_the_kubelet_corrects_what_was_stored_without_the_webhook(
    stored: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Others that write the same amounts again cannot know them."""
    assert amplified(stored, stored, reported=True) == expected
    corrected = copy.deepcopy(stored)
    corrected["status"]["allocatable"]["cpu"] = "2"
    assert amplified(stored, stored) == corrected


def test_terabytes_of_memory_are_exact() -> None:
    result = amplified(node('{"memory":2}', memory="9895604649985"), node())
    assert result["status"]["allocatable"]["memory"] == str(2 * 9895604649985)


@pytest.mark.parametrize("bad", [node("{", cpu="1"), node('{"cpu":"2"}', cpu="1"), node('{"cpu":2}', "[]", cpu="1")])
def test_a_malformed_annotation_is_an_error(bad: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="annotation node"):
        amplified(bad, node(cpu="1"))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1.01, 8))
def test_the_life_of_a_node(first: int, second: int, ratio: float) -> None:
    """The kubelet and the manager write in turn; what is stored is always the kubelet's last word, amplified."""
    text = json.dumps({"cpu": ratio})
    stored = node(text, cpu=f"{first}m")
    stored = amplified(stored, None)
    assert amplified(stored, stored) == stored, "a write that changes nothing changes nothing"
    kubelet = copy.deepcopy(stored)
    kubelet["status"]["allocatable"]["cpu"] = f"{second}m"
    if second == int(first * ratio):
        return  # the known limit: the new value equals the amplified old one
    after = amplified(kubelet, stored)
    assert after == amplified(node(text, cpu=f"{second}m"), None)


CONFIG = {
    "cpu-burst-config": json.dumps(
        {
            "nodeStrategies": [
                {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}},
                {"name": "b", "nodeSelector": {"matchLabels": {"zone": "b"}}},
            ]
        }
    ),
    "system-config": "not JSON",
}
CONFLICTS = {
    "both": ({"pool": "a", "zone": "b"}, {"pool": "a"}, True),
    "both, new node": ({"pool": "a", "zone": "b"}, None, True),
    "one": ({"pool": "a"}, {}, False),
    "labels unchanged": ({"pool": "a", "zone": "b"}, {"pool": "a", "zone": "b"}, False),
}


@pytest.mark.parametrize(("labels", "old", "refused"), CONFLICTS.values(), ids=CONFLICTS)
def test_labels_that_match_two_strategies(labels: dict[str, str], old: dict[str, str] | None, refused: bool) -> None:
    conflict = label_conflict(CONFIG, "n1", labels, old)
    assert (conflict is not None) is refused
    if conflict is not None:
        assert str(conflict) == (
            '___{"message":{"config":"cpu-burst-config","exampleNodes":["n1"],"strategies":["a","b"]},'
            '"reason":"ExistNodeConfict"}___'
        )


def test_without_configuration_there_is_no_conflict() -> None:
    assert label_conflict(None, "n1", {"pool": "a", "zone": "b"}, None) is None
