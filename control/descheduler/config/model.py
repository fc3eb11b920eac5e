"""The types of DeschedulerConfiguration v1alpha2 with their defaults (spec 07 §2.1, §2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from control.component.settings import ClientConnection, LeaderElection
from koordlet.api.encoding.times import Duration
from koordlet.api.meta import LabelSelector
from koordlet.api.names import KOORDINATOR_NAMESPACE

API_VERSION: Final = "descheduler/v1alpha2"
KIND: Final = "DeschedulerConfiguration"
COMPONENT: Final = "koord-descheduler"
DEFAULT_PORT: Final = 10251


class _Config(msgspec.Struct, rename="camel"):
    """Base of the configuration types."""


class DeschedulerPluginRef(_Config):
    """A plugin by name."""

    name: str = ""


class DeschedulerPluginSet(_Config):
    """Plugins enabled and disabled in one set; `*` in `disabled` stands for all defaults."""

    enabled: list[DeschedulerPluginRef] = msgspec.field(default_factory=list)
    disabled: list[DeschedulerPluginRef] = msgspec.field(default_factory=list)


def _set() -> Any:
    return msgspec.field(default_factory=DeschedulerPluginSet)


class DeschedulerPlugins(_Config):
    """The plugin sets of a profile."""

    deschedule: DeschedulerPluginSet = _set()
    balance: DeschedulerPluginSet = _set()
    evict: DeschedulerPluginSet = _set()
    filter: DeschedulerPluginSet = _set()

    def sets(self) -> Iterator[tuple[str, DeschedulerPluginSet]]:
        return ((name, getattr(self, name)) for name in self.__struct_fields__)


class DeschedulerPluginConfig(_Config):
    """Arguments of one plugin, before decoding."""

    name: str = ""
    args: Any = None


class DeschedulerProfileConfig(_Config):
    """One profile."""

    name: str = ""
    node_selector: LabelSelector | None = None
    plugins: DeschedulerPlugins | None = None
    plugin_config: list[DeschedulerPluginConfig] = msgspec.field(default_factory=list)


class DeschedulerLease(LeaderElection):
    """Leader election with the descheduler's lease as default."""

    resource_name: str = COMPONENT
    resource_namespace: str = KOORDINATOR_NAMESPACE


class DeschedulerConnection(ClientConnection):
    """The connection with the descheduler's default of content types. JSON is used."""

    accept_content_types: str = "application/vnd.kubernetes.protobuf,application/json"


class DeschedulerConfiguration(_Config):
    """The configuration file."""

    api_version: str = API_VERSION
    kind: str = KIND
    leader_election: DeschedulerLease = msgspec.field(default_factory=DeschedulerLease)
    client_connection: DeschedulerConnection = msgspec.field(default_factory=DeschedulerConnection)
    enable_profiling: bool = True
    enable_contention_profiling: bool | None = None
    healthz_bind_address: str = f"0.0.0.0:{DEFAULT_PORT}"
    metrics_bind_address: str = f"0.0.0.0:{DEFAULT_PORT}"
    descheduling_interval: Duration = Duration("0s")
    dry_run: bool = False
    profiles: list[DeschedulerProfileConfig] = msgspec.field(default_factory=list)
    node_selector: LabelSelector | None = None
    max_no_of_pods_to_evict_per_node: int | None = None
    max_no_of_pods_to_evict_per_namespace: int | None = None
    max_no_of_pods_to_evict_total: int | None = None
