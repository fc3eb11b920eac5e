"""The types of KubeSchedulerConfiguration v1 (spec 05 §2.1), with kube-scheduler's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from control.component.settings import ClientConnection, LeaderElection
from koordlet.api.encoding.times import Duration

GROUP: Final = "kubescheduler.config.k8s.io"
API_VERSION: Final = f"{GROUP}/v1"
KIND: Final = "KubeSchedulerConfiguration"
POINTS: Final = (
    *("preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore"),
    *("score", "reserve", "permit", "preBind", "bind", "postBind"),
)
"""Extension points, in the order in which they run for a pod."""


class _Config(msgspec.Struct, rename="camel"):
    """Base of the configuration types."""


class PluginRef(_Config):
    """A plugin, with its weight at the score point (0 means 1)."""

    name: str = ""
    weight: int = 0


class PluginSet(_Config):
    """The plugins enabled and disabled at one point. `*` in `disabled` stands for all default plugins."""

    enabled: list[PluginRef] = []
    disabled: list[PluginRef] = []

    def names(self) -> list[str]:
        return [ref.name for ref in self.enabled]

    def switched_off(self) -> set[str]:
        return {ref.name for ref in self.disabled}


def _set() -> Any:
    return msgspec.field(default_factory=PluginSet)


class ProfilePlugins(_Config):
    """One set per point. `multi_point` applies to every point that a plugin implements."""

    pre_enqueue: PluginSet = _set()
    queue_sort: PluginSet = _set()
    pre_filter: PluginSet = _set()
    filter: PluginSet = _set()
    post_filter: PluginSet = _set()
    pre_score: PluginSet = _set()
    score: PluginSet = _set()
    reserve: PluginSet = _set()
    permit: PluginSet = _set()
    pre_bind: PluginSet = _set()
    bind: PluginSet = _set()
    post_bind: PluginSet = _set()
    multi_point: PluginSet = _set()

    def at(self, point: str) -> PluginSet:
        """The set of a point, by the point's JSON name."""
        plugin_set: PluginSet = getattr(self, _ATTRIBUTES[point])
        return plugin_set

    def sets(self) -> Iterator[tuple[str, PluginSet]]:
        return ((point, self.at(point)) for point in _ATTRIBUTES)


_ATTRIBUTES: Final = dict(zip(ProfilePlugins.__struct_encode_fields__, ProfilePlugins.__struct_fields__, strict=True))


class PluginConfig(_Config):
    """Arguments of one plugin, before decoding."""

    name: str = ""
    args: Any = None


class Profile(_Config):
    """A profile; pods select it by `spec.schedulerName`."""

    scheduler_name: str = ""
    percentage_of_nodes_to_score: int | None = None
    plugins: ProfilePlugins | None = None
    plugin_config: list[PluginConfig] = []


class SchedulerLease(LeaderElection):
    """Leader election with kube-scheduler's lease as default."""

    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class ManagedResource(_Config):
    """An extended resource that an extender manages. `ignored_by_scheduler`: NodeResourcesFit ignores it."""

    name: str = ""
    ignored_by_scheduler: bool = False


class ExtenderTls(_Config):
    """TLS settings for an extender. `*_data` are PEM in base64."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""
    key_data: str = ""
    ca_data: str = ""


class ExtenderConfig(_Config):
    """A service that filters, scores or binds over HTTP. Without managed resources it is called for every pod."""

    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTls | None = None
    http_timeout: Duration = msgspec.field(default=Duration("5s"), name="httpTimeout")
    node_cache_capable: bool = False
    managed_resources: list[ManagedResource] = []
    ignorable: bool = False


class Configuration(_Config):
    """The complete configuration file."""

    api_version: str = API_VERSION
    kind: str = KIND
    parallelism: int = 16
    leader_election: SchedulerLease = msgspec.field(default_factory=SchedulerLease)
    client_connection: ClientConnection = msgspec.field(default_factory=ClientConnection)
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    percentage_of_nodes_to_score: int = 0
    pod_initial_backoff_seconds: int = 1
    pod_max_backoff_seconds: int = 10
    delay_cache_until_active: bool = False
    profiles: list[Profile] = []
    extenders: list[ExtenderConfig] = []
