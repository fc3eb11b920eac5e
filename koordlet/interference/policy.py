"""The strategy in force: NodeSLO's over the defaults; a malformed one is said once and the last good one stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordlet.api.crs.slo import extension_values
from koordlet.api.sloconfig.interference import DEFAULT, InterferenceConfigError, InterferenceStrategy, effective
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class Policy:
    """`extensions` gives NodeSLO's as they are (None without a NodeSLO); they are read again only when they are another
    object. Without the key the defaults are in force."""

    def __init__(self, extensions: Callable[[], Mapping[str, Any] | None]) -> None:
        self._extensions = extensions
        self._seen: Mapping[str, Any] | None = None
        self._strategy = DEFAULT
        self.error = ""
        """Why the latest strategy is not in force; empty when it is."""

    def current(self) -> InterferenceStrategy:
        """What to judge by now."""
        found = self._extensions()
        if found is self._seen:
            return self._strategy
        self._seen = found
        try:
            self._strategy = effective(extension_values(found))
            self.error = ""
        except InterferenceConfigError as error:
            if str(error) != self.error:
                log.warning("interference strategy not taken; the last good one stays", error=str(error))
            self.error = str(error)
        return self._strategy
