"""Checks of label selectors in configuration. Pure."""

from __future__ import annotations

from koordlet.api.meta import LabelSelector, SelectorError


def selector_errors(selector: LabelSelector | None, path: str) -> list[str]:
    """The errors of a label selector; none without one."""
    try:
        if selector is not None:
            selector.matches({})
    except SelectorError as error:
        return [f"{path}: Invalid value: {error}"]
    return []
