"""Label selectors as text, `a=b,c!=d,e in (f,g),h notin (i),j,!k`, as in flags and some configuration fields. Pure."""

from __future__ import annotations

import re
from typing import Final

from koordlet.api.meta import LabelSelector, LabelSelectorRequirement, SelectorError

_SET: Final = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL: Final = re.compile(r"(?P<key>[^\s=!,()]+)\s*(?P<operator>==|!=|=)\s*(?P<value>[^\s=!,()]*)")
_EXISTS: Final = re.compile(r"(?P<negated>!?)\s*(?P<key>[^\s=!,()]+)")
_COMMA: Final = re.compile(r",(?![^()]*\))")


def parse_label_selector(text: str) -> LabelSelector:
    """The selector; "" matches everything. Raises SelectorError."""
    requirements = [_requirement(part.strip()) for part in _COMMA.split(text)] if text.strip() else []
    selector = LabelSelector(match_expressions=requirements)
    selector.matches({})
    return selector


def _requirement(part: str) -> LabelSelectorRequirement:
    if match := _SET.fullmatch(part):
        values = [value.strip() for value in match["values"].split(",")]
        operator = "In" if match["operator"] == "in" else "NotIn"
        return LabelSelectorRequirement(key=match["key"], operator=operator, values=values)
    if match := _EQUAL.fullmatch(part):
        operator = "NotIn" if match["operator"] == "!=" else "In"
        return LabelSelectorRequirement(key=match["key"], operator=operator, values=[match["value"]])
    if match := _EXISTS.fullmatch(part):
        return LabelSelectorRequirement(key=match["key"], operator="DoesNotExist" if match["negated"] else "Exists")
    raise SelectorError(f"{part!r} is not a label requirement")
