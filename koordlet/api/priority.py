"""Priority classes and their bands (spec 01 §4.1). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from koordlet.api.core import Pod
from koordlet.api.names import LABEL_PRIORITY, LABEL_PRIORITY_CLASS
from koordlet.api.qos import BE, LS, LSE, LSR, SYSTEM, qos_class

PROD: Final = "koord-prod"
MID: Final = "koord-mid"
BATCH: Final = "koord-batch"
FREE: Final = "koord-free"
NONE: Final = ""

_INT32 = range(-(2**31), 2**31)
# Go's "base 0" syntax: 0x, 0o, 0b, a leading 0 for octal; an underscore only between digits or after a prefix.
_BASE0 = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<x>(?:_?[0-9a-fA-F])+)|0[bB](?P<b>(?:_?[01])+)"
    r"|0[oO]?(?P<o>(?:_?[0-7])+)|(?P<d>0|[1-9](?:_?[0-9])*))",
    re.ASCII,
)


class Band(NamedTuple):
    """Priority values of a class: inclusive bounds, and the default value when only the class is known.

    `low` is also the value of the PriorityClass object of that name.
    """

    low: int
    high: int
    default: int


BANDS: Final[dict[str, Band]] = {
    PROD: Band(9000, 9999, 9500),
    MID: Band(7000, 7999, 7500),
    BATCH: Band(5000, 5999, 5500),
    FREE: Band(3000, 3999, 3500),
}
"""Highest first. Values outside of the bands have no class."""

CLASSES: Final = tuple(BANDS)

_BY_QOS: Final[dict[str, str]] = {SYSTEM: PROD, LSE: PROD, LSR: PROD, LS: PROD, BE: BATCH}


class PriorityError(ValueError):
    """A sub-priority label that is not an int32."""


def class_of_value(priority: int | None) -> str:
    """The class whose band contains `priority`, else `NONE`."""
    if priority is not None:
        for name, band in BANDS.items():
            if band.low <= priority <= band.high:
                return name
    return NONE


def class_of_qos(qos: str) -> str:
    """The class that a QoS class implies."""
    return _BY_QOS.get(qos, NONE)


def raw_class(labels: Mapping[str, str], priority: int | None) -> str:
    """The class from the label, else from the value.

    An existing label takes precedence: with an unknown name the class is `NONE`, whatever the value is.
    """
    named = labels.get(LABEL_PRIORITY_CLASS)
    if named is not None:
        return named if named in BANDS else NONE
    return class_of_value(priority)


def default_value(priority_class: str) -> int:
    """The default priority value of a class; 0 for `NONE`."""
    band = BANDS.get(priority_class)
    return band.default if band else 0


def raw_priority_class(pod: Pod | None) -> str:
    """`raw_class` of a pod; `NONE` without a pod."""
    return NONE if pod is None else raw_class(pod.metadata.labels, pod.spec.priority)


def priority_class(pod: Pod | None) -> str:
    """The pod's class, with the default that its (defaulted) QoS class implies."""
    if pod is None:
        return NONE
    return raw_priority_class(pod) or class_of_qos(qos_class(pod))


def priority_value(pod: Pod | None) -> int:
    """`spec.priority` if set and not 0, else the default value of the pod's class."""
    if pod is None:
        return 0
    return pod.spec.priority or default_value(priority_class(pod))


def sub_priority(labels: Mapping[str, str]) -> int:
    """The order inside a class from label `koordinator.sh/priority`; 0 when absent or empty.

    Raises PriorityError when it is not an int32 in Go's base-0 syntax; callers then use 0.
    """
    text = labels.get(LABEL_PRIORITY, "")
    if not text:
        return 0
    match = _BASE0.fullmatch(text)
    if match and len(text) <= 64:
        for group, base in (("x", 16), ("b", 2), ("o", 8), ("d", 10)):
            if match[group] is not None:
                value = int(match["sign"] + match[group].replace("_", ""), base)
                if value in _INT32:
                    return value
    raise PriorityError(f"label {LABEL_PRIORITY}: {text!r} is not an int32")
