"""Priority and QoS classes: the vectors of spec 01 §4.1 and §4.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import priority
from koordlet.api.core import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.api.priority import (
    BANDS,
    PriorityError,
    class_of_value,
    priority_class,
    priority_value,
    raw_priority_class,
    sub_priority,
)
from koordlet.api.qos import qos_class, raw_qos_class

PRIORITY_CLASS = "koordinator.sh/priority-class"
QOS = "koordinator.sh/qosClass"


def pod(labels: dict[str, str] | None = None, value: int | None = None, kube: str = "Burstable") -> Pod:
    return Pod(metadata=ObjectMeta(labels=labels or {}), spec=PodSpec(priority=value), status=PodStatus(qos_class=kube))


@pytest.mark.parametrize(
    ("labels", "value", "kube", "raw", "cls", "number"),
    [
        ({}, 9500, "Burstable", "koord-prod", "koord-prod", 9500),
        ({PRIORITY_CLASS: "koord-prod"}, 5500, "Burstable", "koord-prod", "koord-prod", 5500),
        ({PRIORITY_CLASS: "unknown"}, 5500, "Burstable", "", "koord-prod", 5500),
        ({PRIORITY_CLASS: ""}, 5500, "BestEffort", "", "koord-batch", 5500),
        ({QOS: "LSR"}, 5500, "Burstable", "koord-batch", "koord-batch", 5500),
        ({QOS: "BE"}, None, "Burstable", "", "koord-batch", 5500),
        ({}, None, "Burstable", "", "koord-prod", 9500),
        ({}, None, "BestEffort", "", "koord-batch", 5500),
        ({}, 100000, "Burstable", "", "koord-prod", 100000),
        ({}, 0, "Burstable", "", "koord-prod", 9500),
        ({PRIORITY_CLASS: "koord-mid"}, None, "BestEffort", "koord-mid", "koord-mid", 7500),
        ({PRIORITY_CLASS: "koord-free"}, 0, "BestEffort", "koord-free", "koord-free", 3500),
        ({QOS: "SYSTEM"}, None, "BestEffort", "", "koord-prod", 9500),
        ({QOS: "LSE"}, None, "Guaranteed", "", "koord-prod", 9500),
        ({}, None, "Unheard", "", "", 0),
    ],
)
def test_class_and_value(labels: dict[str, str], value: int | None, kube: str, raw: str, cls: str, number: int) -> None:
    subject = pod(labels, value, kube)
    assert (raw_priority_class(subject), priority_class(subject), priority_value(subject)) == (raw, cls, number)


def test_no_pod_has_no_class() -> None:
    assert (raw_priority_class(None), priority_class(None), priority_value(None)) == ("", "", 0)


@pytest.mark.parametrize(("name", "band"), BANDS.items(), ids=BANDS)
def test_bands_are_inclusive(name: str, band: priority.Band) -> None:
    assert class_of_value(band.low) == class_of_value(band.high) == class_of_value(band.default) == name
    assert class_of_value(band.low - 1) != name != class_of_value(band.high + 1)
    assert band.high - band.low == 999 and priority.default_value(name) == band.low + 500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0), ("7", 7), ("-3", -3), ("+3", 3), ("0x1F", 31), ("0b101", 5), ("0o17", 15), ("017", 15),
        ("1_000", 1000), ("0x_1f", 31), ("2147483647", 2147483647), ("-2147483648", -2147483648), ("0", 0),
    ],
)  # fmt: skip
def test_sub_priority(text: str, value: int) -> None:
    assert sub_priority({"koordinator.sh/priority": text}) == value


@pytest.mark.parametrize("text", ["x", "1.5", " 1", "2147483648", "08", "0x", "_1", "1__0", "1_", "0b2", "1" * 99])
def test_sub_priority_refuses(text: str) -> None:
    with pytest.raises(PriorityError, match=r"koordinator\.sh/priority"):
        sub_priority({"koordinator.sh/priority": text})


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from([str, hex, bin, oct]))
def test_sub_priority_reads_every_int32_in_every_base(value: int, write: type[str]) -> None:
    assert sub_priority({"koordinator.sh/priority": write(value)}) == value


@pytest.mark.parametrize(
    ("labels", "kube", "raw", "cls"),
    [
        ({QOS: "LSE"}, "BestEffort", "LSE", "LSE"),
        ({QOS: "SYSTEM"}, "BestEffort", "SYSTEM", "SYSTEM"),
        ({QOS: "be"}, "Burstable", "", "LS"),
        ({QOS: ""}, "Guaranteed", "", "LSR"),
        ({}, "Guaranteed", "", "LSR"),
        ({}, "Burstable", "", "LS"),
        ({}, "BestEffort", "", "BE"),
    ],
)
def test_qos_class(labels: dict[str, str], kube: str, raw: str, cls: str) -> None:
    assert (raw_qos_class(pod(labels, kube=kube)), qos_class(pod(labels, kube=kube))) == (raw, cls)


def test_qos_class_without_status_comes_from_the_spec() -> None:
    amounts = {"cpu": Quantity("1"), "memory": Quantity("1Gi")}
    container = Container(name="c", resources=ResourceRequirements(limits=amounts, requests=amounts))
    assert qos_class(Pod(spec=PodSpec(containers=[container]))) == "LSR"
    assert qos_class(Pod(spec=PodSpec(containers=[container], init_containers=[Container(name="i")]))) == "LS"
    assert qos_class(Pod(spec=PodSpec(containers=[Container(name="c")]))) == "BE"
