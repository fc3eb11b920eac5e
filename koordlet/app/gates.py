"""Feature gates in the syntax of Kubernetes binaries (spec 01 §7): `A=true,B=false`, `AllAlpha=true`.

The tables of gates are in `koordlet.api.gates`; this module holds the values of one process. An explicit name has
precedence over `AllAlpha`/`AllBeta`, in whatever order they are on the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from koordlet.api.encoding.gosyntax import parse_bool

if TYPE_CHECKING:  # the tables import strategies, which binaries without gates do not need
    from koordlet.api.gates import Gate


class GateError(ValueError):
    """An unknown gate, a value that is not a bool, or a GA gate set to false."""


class FeatureGates:
    """The gates of a process: known names, defaults, and the values that were set."""

    def __init__(self, known: Mapping[str, Gate]) -> None:
        self._known = known
        self._explicit: dict[str, bool] = {}
        self._stages: dict[str, bool] = {}

    def set(self, value: str | Mapping[str, bool]) -> None:
        """Apply `A=true,B=false` (or a mapping) to the values set before.

        Raises GateError, and applies nothing, for an unknown name, a value that is not a bool, or a GA gate set to
        false.
        """
        values = _parse(value) if isinstance(value, str) else dict(value)
        explicit: dict[str, bool] = {}
        stages: dict[str, bool] = {}
        for name, on in values.items():
            if name in ("AllAlpha", "AllBeta"):
                stages[name[3:].lower()] = on
            elif name not in self._known:
                raise GateError(f"unknown feature gate {name}{_hint(name, self._known)}")
            elif not on and self._known[name].stage == "ga":
                raise GateError(f"cannot set feature gate {name} to false: it is GA")
            else:
                explicit[name] = on
        self._explicit.update(explicit)
        self._stages.update(stages)

    def enabled(self, name: str) -> bool:
        """Whether the gate is on; GateError for a name that is not in the table."""
        spec = self._known.get(name)
        if spec is None:
            raise GateError(f"unknown feature gate {name}{_hint(name, self._known)}")
        if name in self._explicit:
            return self._explicit[name]
        return self._stages.get(spec.stage, spec.default)

    def stages(self) -> dict[str, str]:
        """The stage of every known gate."""
        return {name: self._known[name].stage for name in sorted(self._known)}

    def values(self) -> dict[str, bool]:
        """All known gates with their values, sorted by name."""
        return {name: self.enabled(name) for name in sorted(self._known)}

    def __str__(self) -> str:
        """The gates that are on, for the log."""
        return ",".join(name for name, on in self.values().items() if on)


def _parse(text: str) -> dict[str, bool]:
    values: dict[str, bool] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise GateError(f"missing bool value for feature gate {part}")
        try:
            values[name.strip()] = parse_bool(value.strip())
        except ValueError as error:
            raise GateError(f"invalid value of feature gate {name.strip()}: {error}") from error
    return values


def _hint(name: str, known: Mapping[str, Gate]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else ""
