"""Reads a configuration file and resolves its profiles (spec 07 §2).

    settings = load(text, PLUGINS)

Reading is strict, and all errors are reported together, in one ConfigurationError, each with the path of its field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from control.component.errors import ConfigurationError, duplicate, invalid, unusable_name
from control.component.pluginargs import arguments_body, arguments_by_plugin, shown_arguments
from control.component.reading import Reader, parse
from control.component.settings import check_connection, check_lease
from control.descheduler.config.addresses import completed_address
from control.descheduler.config.model import (
    API_VERSION,
    COMPONENT,
    KIND,
    DeschedulerConfiguration,
    DeschedulerPluginConfig,
    DeschedulerPluginRef,
    DeschedulerPlugins,
    DeschedulerPluginSet,
    DeschedulerProfileConfig,
)
from control.descheduler.config.selectors import selector_errors
from control.descheduler.framework.limiter import EvictionLimits
from control.descheduler.framework.plugin import SETS, DeschedulerPlugin, PluginArgs
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector

DEFAULT_SETS: Final[dict[str, tuple[str, ...]]] = {
    "evict": ("MigrationController",),
    "filter": ("MigrationController",),
}
"""Set -> plugins that are enabled by default."""
_MAX_UINT: Final = 2**64 - 1

Kinds = Mapping[str, type[DeschedulerPlugin]]


@dataclass(frozen=True)
class ResolvedProfile:
    """One resolved profile."""

    name: str
    node_selector: LabelSelector | None
    enabled: Mapping[str, tuple[str, ...]]
    """Set -> names of its plugins, in order; every set of `SETS` has an entry."""
    args: Mapping[str, PluginArgs]
    """By plugin, for every enabled plugin."""

    def names(self) -> list[str]:
        """Every enabled plugin once."""
        return list(dict.fromkeys(name for names in self.enabled.values() for name in names))


@dataclass(frozen=True)
class DeschedulerSettings:
    """The configuration file with defaults, and its resolved profiles."""

    configuration: DeschedulerConfiguration
    profiles: tuple[ResolvedProfile, ...]

    @property
    def limits(self) -> EvictionLimits:
        configuration = self.configuration
        return EvictionLimits(
            configuration.max_no_of_pods_to_evict_per_node,
            configuration.max_no_of_pods_to_evict_per_namespace,
            configuration.max_no_of_pods_to_evict_total,
        )


def load(text: str, kinds: Kinds) -> DeschedulerSettings:
    """Read, complete and validate a file; "" is an empty file. Raises ConfigurationError. `kinds`: all plugins."""
    errors: list[str] = []
    document = parse(text) if text.strip() else {"apiVersion": API_VERSION, "kind": KIND}
    version, kind = document.get("apiVersion"), document.get("kind")
    if kind != KIND or version != API_VERSION:
        errors.append(f'no kind "{kind}" is registered for version "{version}": want {KIND} of {API_VERSION}')
    configuration: DeschedulerConfiguration = Reader(errors).struct(document, DeschedulerConfiguration)
    configuration.api_version, configuration.kind = API_VERSION, KIND
    if not configuration.profiles:
        configuration.profiles = [DeschedulerProfileConfig(plugins=DeschedulerPlugins())]
    if len(configuration.profiles) == 1 and not configuration.profiles[0].name:
        configuration.profiles[0].name = COMPONENT
    _check(configuration, errors)
    profiles = tuple(
        _profile(profile, f"profiles[{index}]", kinds, errors) for index, profile in enumerate(configuration.profiles)
    )
    if errors:
        raise ConfigurationError(errors)
    return DeschedulerSettings(configuration, profiles)


def shown(settings: DeschedulerSettings) -> dict[str, Any]:
    """The effective configuration as JSON, for /configz: plugins merged, all arguments with their defaults."""
    document: dict[str, Any] = msgspec.to_builtins(settings.configuration, enc_hook=wire.enc_hook)
    for profile, configuration in zip(document["profiles"], settings.profiles, strict=True):
        profile["plugins"] = {
            name: {"enabled": [{"name": plugin} for plugin in plugins], "disabled": [{"name": "*"}]}
            for name, plugins in configuration.enabled.items()
        }
        profile["pluginConfig"] = shown_arguments(configuration.args, API_VERSION)
    return document


def _check(configuration: DeschedulerConfiguration, errors: list[str]) -> None:
    """The errors outside of profiles; completes the bind addresses and the profiling switch."""
    check_lease(configuration.leader_election, errors)
    check_connection(configuration.client_connection, errors)
    if configuration.enable_contention_profiling is None:
        configuration.enable_contention_profiling = configuration.enable_profiling
    for name, field in (("healthzBindAddress", "healthz_bind_address"), ("metricsBindAddress", "metrics_bind_address")):
        try:
            setattr(configuration, field, completed_address(getattr(configuration, field)))
        except ValueError as error:
            errors.append(invalid(name, getattr(configuration, field), str(error)))
    if configuration.descheduling_interval.nanoseconds < 0:
        errors.append(invalid("deschedulingInterval", configuration.descheduling_interval, "must not be negative"))
    errors += selector_errors(configuration.node_selector, "nodeSelector")
    for name, limit in (
        ("maxNoOfPodsToEvictPerNode", configuration.max_no_of_pods_to_evict_per_node),
        ("maxNoOfPodsToEvictPerNamespace", configuration.max_no_of_pods_to_evict_per_namespace),
        ("maxNoOfPodsToEvictTotal", configuration.max_no_of_pods_to_evict_total),
    ):
        if limit is not None and not 0 <= limit <= _MAX_UINT:
            errors.append(invalid(name, limit, "must be an unsigned integer"))
    names: set[str] = set()
    for index, profile in enumerate(configuration.profiles):
        where = f"profiles[{index}]"
        errors += unusable_name(f"{where}.name", profile.name, names)
        errors += selector_errors(profile.node_selector, f"{where}.nodeSelector")


def merged(defaults: Sequence[str], custom: DeschedulerPluginSet) -> tuple[str, ...]:
    """The enabled plugins of a set (spec 07 §2.2)."""
    disabled = {ref.name for ref in custom.disabled}
    kept = [] if "*" in disabled else [name for name in defaults if name not in disabled]
    return (*kept, *(ref.name for ref in custom.enabled if ref.name not in kept))


def _profile(profile: DeschedulerProfileConfig, where: str, kinds: Kinds, errors: list[str]) -> ResolvedProfile:
    enabled: dict[str, tuple[str, ...]] = {}
    for name, custom in (profile.plugins or DeschedulerPlugins()).sets():
        path = f"{where}.plugins.{name}"
        _check_refs(custom.enabled, path, errors)
        plugins = merged(DEFAULT_SETS.get(name, ()), custom)
        enabled[name] = tuple(plugin for plugin in plugins if _usable(plugin, name, path, kinds, errors))
        if name == "evict" and not plugins:
            errors.append(f"{path}: no evict plugin is enabled")
        if name == "evict" and len(plugins) > 1:
            errors.append(f"{path}: only one evict plugin can be enabled, but got {len(plugins)}: {', '.join(plugins)}")
    args = arguments_by_plugin(
        profile.plugin_config,
        where,
        kinds,
        lambda entry, path: _decoded(entry, kinds[entry.name], path, errors),
        errors,
    )
    used = dict.fromkeys(name for names in enabled.values() for name in names)
    for name in used:
        if name not in args:
            args[name] = kinds[name].args_type()
            errors += args[name].check(f"{where}.pluginConfig[{name}].args")
    return ResolvedProfile(profile.name, profile.node_selector, enabled, {name: args[name] for name in used})


def _check_refs(refs: Sequence[DeschedulerPluginRef], path: str, errors: list[str]) -> None:
    names: set[str] = set()
    for index, ref in enumerate(refs):
        if ref.name in names:
            errors.append(duplicate(f"{path}.enabled[{index}]", ref.name))
        names.add(ref.name)


def _usable(plugin: str, name: str, path: str, kinds: Kinds, errors: list[str]) -> bool:
    kind = kinds.get(plugin)
    if kind is None:
        errors.append(f'{path}: plugin "{plugin}" does not exist')
    elif not issubclass(kind, SETS[name]):
        errors.append(f'{path}: plugin "{plugin}" does not implement {SETS[name].__name__}')
    else:
        return True
    return False


def _decoded(
    config: DeschedulerPluginConfig, kind: type[DeschedulerPlugin], path: str, errors: list[str]
) -> PluginArgs:
    body = arguments_body(config, path, f"{config.name}Args", API_VERSION, errors)
    if body is None:
        return kind.args_type()
    if not kind.strict_args:
        known = {field.encode_name for field in msgspec.structs.fields(kind.args_type)}
        body = {key: value for key, value in body.items() if key in known}
    before = len(errors)
    args: PluginArgs = Reader(errors).struct(body, kind.args_type, f"{path}.args")
    if len(errors) == before:
        errors += args.check(f"{path}.args")
    return args
