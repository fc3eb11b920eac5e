"""Reads a configuration file and resolves its profiles (spec 05 §1.3, §2).

    settings = load(text, known=..., implements=...)

All errors are reported together, in one ConfigurationError.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from control.component.errors import ConfigurationError, duplicate, invalid, unusable_name
from control.component.pluginargs import arguments_body, arguments_by_plugin, shown_arguments
from control.component.reading import Reader, parse
from control.component.settings import check_connection, check_lease
from control.scheduler.config.argchecks import check
from control.scheduler.config.args import ARGS, NodeResourcesFitArgs, default_args
from control.scheduler.config.model import (
    API_VERSION,
    GROUP,
    KIND,
    Configuration,
    ExtenderConfig,
    PluginConfig,
    Profile,
)
from control.scheduler.config.plugins import Enabled, Implements, PluginError, expanded, merged
from koordlet.api.encoding import wire

DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True)
class ProfileSettings:
    """One resolved profile: the plugins at each point and their arguments."""

    name: str
    enabled: Enabled
    args: Mapping[str, Any]
    """By plugin, for every enabled plugin that takes arguments."""
    percentage: int
    left_out: tuple[str, ...] = ()
    """Plugins of Kubernetes or Koordinator that the file enables and this build lacks."""


@dataclass(frozen=True)
class SchedulerSettings:
    """The configuration file with defaults, and its resolved profiles."""

    configuration: Configuration
    profiles: tuple[ProfileSettings, ...]


def load(
    text: str, known: Collection[str], implements: Implements, promised: Collection[str] = ()
) -> SchedulerSettings:
    """Read, complete and validate a file; "" is an empty file. Raises ConfigurationError.

    `known`: plugins of this build. `promised`: further valid names, which this build lacks."""
    errors: list[str] = []
    document = parse(text) if text.strip() else {"apiVersion": API_VERSION, "kind": KIND}
    _check_kind(document, errors)
    configuration: Configuration = Reader(errors).struct(document, Configuration)
    if not configuration.profiles:
        configuration.profiles = [Profile()]
    if len(configuration.profiles) == 1 and not configuration.profiles[0].scheduler_name:
        configuration.profiles[0].scheduler_name = DEFAULT_SCHEDULER
    errors += check_configuration(configuration)
    profiles = [
        _profile(configuration, index, known, implements, promised, errors)
        for index in range(len(configuration.profiles))
    ]
    first = profiles[0]
    for index, profile in enumerate(profiles[1:], 1):
        sort = profile.enabled.points["queueSort"]
        if sort != first.enabled.points["queueSort"]:
            errors.append(invalid(f"profiles[{index}].plugins.queueSort", list(sort), "must match for all profiles"))
        elif any(profile.args.get(name) != first.args.get(name) for name in sort):
            errors.append(
                invalid(f"profiles[{index}].pluginConfig", list(sort), "queueSort args must match for all profiles")
            )
    if errors:
        raise ConfigurationError(errors)
    return SchedulerSettings(configuration, tuple(profiles))


def shown(settings: SchedulerSettings) -> dict[str, Any]:
    """The effective configuration as JSON, for /configz: plugins expanded, all arguments with their defaults."""
    document: dict[str, Any] = msgspec.to_builtins(settings.configuration, enc_hook=wire.enc_hook)
    for profile, effective in zip(document["profiles"], settings.profiles, strict=True):
        points = {
            point: {
                "enabled": [_ref(name, point, effective.enabled.weights) for name in names],
                "disabled": [{"name": "*"}],
            }
            for point, names in effective.enabled.points.items()
        }
        profile["plugins"] = points
        profile["pluginConfig"] = shown_arguments(effective.args, API_VERSION)
    return document


def _ref(name: str, point: str, weights: Mapping[str, int]) -> dict[str, Any]:
    return {"name": name, "weight": weights[name]} if point == "score" else {"name": name}


def _check_kind(document: dict[str, Any], errors: list[str]) -> None:
    version, kind = document.get("apiVersion"), document.get("kind")
    if kind != KIND or version != API_VERSION:
        errors.append(f'no kind "{kind}" is registered for version "{version}": want {KIND} of {API_VERSION}')


def check_configuration(configuration: Configuration) -> list[str]:
    """The errors outside of plugins and their arguments."""
    errors: list[str] = []
    if configuration.parallelism <= 0:
        errors.append(invalid("parallelism", configuration.parallelism, "should be an integer value greater than zero"))
    _check_percentage("percentageOfNodesToScore", configuration.percentage_of_nodes_to_score, errors)
    if configuration.pod_initial_backoff_seconds <= 0:
        errors.append(
            invalid("podInitialBackoffSeconds", configuration.pod_initial_backoff_seconds, "must be greater than 0")
        )
    if configuration.pod_max_backoff_seconds < configuration.pod_initial_backoff_seconds:
        text = "must be greater than or equal to PodInitialBackoffSeconds"
        errors.append(invalid("podMaxBackoffSeconds", configuration.pod_max_backoff_seconds, text))
    check_connection(configuration.client_connection, errors)
    _check_extenders(configuration.extenders, errors)
    check_lease(configuration.leader_election, errors)
    names: set[str] = set()
    for index, profile in enumerate(configuration.profiles):
        where = f"profiles[{index}]"
        errors += unusable_name(f"{where}.schedulerName", profile.scheduler_name, names)
        if profile.percentage_of_nodes_to_score is not None:
            _check_percentage(f"{where}.percentageOfNodesToScore", profile.percentage_of_nodes_to_score, errors)
    return errors


def _check_extenders(extenders: Sequence[ExtenderConfig], errors: list[str]) -> None:
    managed: set[str] = set()
    for index, extender in enumerate(extenders):
        where = f"extenders[{index}]"
        if not extender.url_prefix.startswith(("http://", "https://")):
            errors.append(invalid(f"{where}.urlPrefix", extender.url_prefix, "must begin with http:// or https://"))
        elif extender.enable_https and not extender.url_prefix.startswith("https://"):
            errors.append(
                invalid(f"{where}.urlPrefix", extender.url_prefix, "must begin with https:// with enableHTTPS")
            )
        if extender.prioritize_verb and extender.weight <= 0:
            errors.append(invalid(f"{where}.weight", extender.weight, "must have a positive weight applied to it"))
        if extender.preempt_verb:
            text = "this scheduler does not call extenders for preemption"
            errors.append(invalid(f"{where}.preemptVerb", extender.preempt_verb, text))
        if extender.tls_config is not None and extender.tls_config.server_name:
            text = "only the host name in urlPrefix is verified"
            errors.append(invalid(f"{where}.tlsConfig.serverName", extender.tls_config.server_name, text))
        for at, resource in enumerate(extender.managed_resources):
            path = f"{where}.managedResources[{at}].name"
            if "/" not in resource.name or resource.name.startswith("kubernetes.io/"):
                errors.append(invalid(path, resource.name, "is an invalid extended resource name"))
            elif resource.name in managed:
                errors.append(duplicate(path, resource.name))
            managed.add(resource.name)
    binders = sum(bool(extender.bind_verb) for extender in extenders)
    if binders > 1:
        number = f"found {binders} extenders implementing bind"
        errors.append(invalid("extenders", number, "only one extender can implement bind"))


def _ignore_managed_resources(args: dict[str, Any], extenders: Sequence[ExtenderConfig]) -> None:
    """Make NodeResourcesFit ignore the resources that extenders manage with `ignoredByScheduler`."""
    ignored = [
        resource.name
        for extender in extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    ]
    fit = args.get("NodeResourcesFit")
    if ignored and isinstance(fit, NodeResourcesFitArgs):
        known = [*fit.ignored_resources, *(name for name in ignored if name not in fit.ignored_resources)]
        args["NodeResourcesFit"] = msgspec.structs.replace(fit, ignored_resources=known)


def _check_percentage(path: str, value: int, errors: list[str]) -> None:
    if not 0 <= value <= 100:
        errors.append(invalid(path, value, "not in valid range [0-100]"))


def _profile(
    configuration: Configuration,
    index: int,
    known: Collection[str],
    implements: Implements,
    promised: Collection[str],
    errors: list[str],
) -> ProfileSettings:
    profile, where = configuration.profiles[index], f"profiles[{index}]"
    plugins = merged(profile.plugins)
    left_out: dict[str, None] = {}
    named = {
        ref.name for _, plugin_set in (profile.plugins.sets() if profile.plugins else ()) for ref in plugin_set.enabled
    }
    for point, plugin_set in plugins.sets():
        for ref in list(plugin_set.enabled):
            if ref.name in known:
                continue
            plugin_set.enabled.remove(ref)
            if ref.name in promised or ref.name not in named:
                if ref.name in named:
                    left_out[ref.name] = None
            else:
                errors.append(f'{where}.plugins.{point}: plugin "{ref.name}" does not exist')
    try:
        enabled = expanded(plugins, implements)
    except PluginError as error:
        errors.append(f"{where}.plugins: {error}")
        enabled = expanded(merged(None), lambda name, point: False)
    else:
        sorters, binders = {*enabled.points["queueSort"]}, enabled.points["bind"]
        if sorters:  # plugins that another build sorts with count too: kube-scheduler rejects a second one
            sorters.update(plugins.queue_sort.names())
        if any(weight < 0 for weight in enabled.weights.values()):
            errors.append(f"{where}.plugins.score: total score of Score plugins could overflow")
        if len(sorters) != 1:
            errors.append(
                f"{where}.plugins.queueSort: one queue sort plugin required for profile with scheduler name"
                f' "{profile.scheduler_name}", but got {len(sorters)}'
            )
        if not binders:
            errors.append(
                f"{where}.plugins.bind: at least one bind plugin is needed for profile with scheduler name"
                f' "{profile.scheduler_name}"'
            )
    takes_arguments = {*known, *promised, *ARGS}
    args = arguments_by_plugin(
        profile.plugin_config, where, takes_arguments, lambda entry, path: _decoded(entry, path, errors), errors
    )
    for name in enabled.names():
        if name not in args and name in ARGS:
            args[name] = default_args(name)
    _ignore_managed_resources(args, configuration.extenders)
    percentage = profile.percentage_of_nodes_to_score
    return ProfileSettings(
        profile.scheduler_name,
        enabled,
        {name: args[name] for name in enabled.names() if name in args},
        configuration.percentage_of_nodes_to_score if percentage is None else percentage,
        tuple(left_out),
    )


def _decoded(config: PluginConfig, path: str, errors: list[str]) -> Any:
    kind = ARGS.get(config.name)
    if kind is None:
        if config.args:
            errors.append(f"{path}: plugin {config.name} takes no args")
        return None
    name = kind.__name__
    body = arguments_body(config, path, name, API_VERSION, errors, shown_kind=f"{name}.{GROUP}")
    if body is None or config.args is None:
        return kind()
    before = len(errors)
    args = Reader(errors).struct(body, kind, f"{path}.args")
    if len(errors) == before:
        errors += check(args, f"{path}.args")
    return args
