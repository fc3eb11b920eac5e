"""Label selectors in the text form of kubectl: `a=b,c!=d,e in (x,y),f notin (z),g,!h`. Pure."""

from __future__ import annotations

import re

from koordlet.api.meta import LabelSelector, LabelSelectorRequirement, SelectorError

_PART = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<missing>[^\s,=!()]+)"
    r"|(?P<key>[^\s,=!()]+)\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[^\s,=!()]*)"
    r"|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)


def parse_selector(text: str) -> LabelSelector:
    """The selector; an empty text selects everything. Raises SelectorError."""
    requirements: list[LabelSelectorRequirement] = []
    at = 0
    while at < len(text.rstrip()):
        match = _PART.match(text, at)
        if match is None:
            raise SelectorError(f"{text[at:].strip()!r} is not a requirement of a label selector")
        requirements.append(_requirement(match))
        at = match.end()
    if text.rstrip().endswith(","):
        raise SelectorError(f"{text!r} ends with a comma")
    selector = LabelSelector(match_expressions=requirements)
    selector.matches({})
    return selector


def _requirement(match: re.Match[str]) -> LabelSelectorRequirement:
    if match["absent"]:
        return LabelSelectorRequirement(key=match["missing"], operator="DoesNotExist")
    if match["set"]:
        values = [value.strip() for value in match["values"].split(",")]
        return LabelSelectorRequirement(
            key=match["key"], operator="In" if match["set"] == "in" else "NotIn", values=values
        )
    if match["operator"]:
        operator = "NotIn" if match["operator"] == "!=" else "In"
        return LabelSelectorRequirement(key=match["key"], operator=operator, values=[match["value"]])
    return LabelSelectorRequirement(key=match["key"], operator="Exists")
