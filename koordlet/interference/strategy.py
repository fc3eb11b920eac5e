"""The interference strategy in force: NodeSLO's values over the defaults. A malformed strategy is logged once, and the
last valid one stays in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordlet.api.crs.slo import extension_values
from koordlet.api.sloconfig.interference import DEFAULT, InterferenceConfigError, InterferenceStrategy, effective
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class StrategySource:
    """`extensions` returns NodeSLO's extensions (None without a NodeSLO). They are parsed again only when it returns
    another object. Without the key, the defaults are in force."""

    def __init__(self, extensions: Callable[[], Mapping[str, Any] | None]) -> None:
        self._extensions = extensions
        self._parsed: Mapping[str, Any] | None = None
        self._strategy = DEFAULT
        self.error = ""
        """Why the latest strategy is not in force; empty when it is."""

    def current(self) -> InterferenceStrategy:
        """The strategy in force now."""
        extensions = self._extensions()
        if extensions is self._parsed:
            return self._strategy
        self._parsed = extensions
        try:
            self._strategy = effective(extension_values(extensions))
            self.error = ""
        except InterferenceConfigError as error:
            if str(error) != self.error:
                log.warning("Malformed interference strategy; the last valid one stays in force", error=str(error))
            self.error = str(error)
        return self._strategy
