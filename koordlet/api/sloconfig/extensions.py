"""Extension plug-ins: ConfigMap keys that become `NodeSLO.spec.extensions` (spec 01 §6.5.9).

One plug-in is built in: `profile.INTERFERENCE_PLUGIN`. When the ConfigMap changes, a plug-in parses it into its own
configuration; per node it returns a key and a value. A failing plug-in is skipped and reported; the other plug-ins and
unknown keys are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class ExtensionError(Exception):
    """A plug-in cannot process the ConfigMap or a node; it is skipped."""


class ExtensionPlugin(Protocol):
    """The interface of a plug-in. Both functions are pure and raise ExtensionError."""

    @property
    def name(self) -> str: ...

    def merge(self, old: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
        """The new configuration map from the old one and the ConfigMap's data."""
        ...

    def get(self, labels: Mapping[str, str], config: Mapping[str, Any]) -> tuple[str, Any]:
        """Key and value for a node; value None removes the key."""
        ...


def merge_extensions(
    plugins: Sequence[ExtensionPlugin], old: Mapping[str, Any], data: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration map after a change of the ConfigMap, and plug-in name -> error."""
    config, errors = dict(old), {}
    for plugin in plugins:
        try:
            config = plugin.merge(config, data)
        except ExtensionError as error:
            errors[plugin.name] = str(error)
    return config, errors


def extensions_for_node(
    plugins: Sequence[ExtensionPlugin],
    labels: Mapping[str, str],
    config: Mapping[str, Any],
    existing: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The extension values of a node, merged over those that its NodeSLO has now, and plug-in name -> error."""
    values, errors = dict(existing), {}
    for plugin in plugins:
        try:
            key, value = plugin.get(labels, config)
        except ExtensionError as error:
            errors[plugin.name] = str(error)
            continue
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values, errors
