"""From a ConfigMap document to the strategy of each node (spec 01 §6.3).

When the ConfigMap changes, the cluster strategy is merged over the defaults, and each node entry over the cluster
strategy. A node uses the first entry whose selector matches its labels, else the cluster strategy. An absent selector
matches nothing, `{}` matches everything, an entry with an invalid selector is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from koordlet.api.encoding.wire import overlay
from koordlet.api.meta import LabelSelector, SelectorError

S = TypeVar("S")
P = TypeVar("P", bound=msgspec.Struct)


class NodeEntry(Protocol):
    """The fields of every element of `nodeConfigs` and `nodeStrategies` in addition to the strategy's."""

    @property
    def name(self) -> str: ...
    @property
    def node_selector(self) -> LabelSelector | None: ...


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether an entry's selector matches a node; an invalid selector does not."""
    if selector is None:
        return False
    try:
        return selector.matches(labels)
    except SelectorError:
        return False


@dataclass(frozen=True)
class NodeStrategy(Generic[S]):
    """A node entry, merged over the cluster strategy."""

    name: str
    selector: LabelSelector | None
    strategy: S


@dataclass(frozen=True)
class MergedStrategies(Generic[S]):
    """The merged strategies of one key of the ConfigMap."""

    cluster: S
    nodes: tuple[NodeStrategy[S], ...] = ()

    def for_node(self, labels: Mapping[str, str]) -> S:
        """The strategy of a node with these labels."""
        for entry in self.nodes:
            if selects(entry.selector, labels):
                return entry.strategy
        return self.cluster

    def map_nodes(self, change: Callable[[S], S]) -> MergedStrategies[S]:
        """A copy in which every entry's strategy is changed."""
        nodes = (NodeStrategy(entry.name, entry.selector, change(entry.strategy)) for entry in self.nodes)
        return MergedStrategies(self.cluster, tuple(nodes))

    @staticmethod
    def build(defaults: P, cluster: msgspec.Struct | None, entries: Iterable[NodeEntry]) -> MergedStrategies[P]:
        """Merge the parts. `entries` are structs that extend the strategy's type."""
        base = overlay(defaults, cluster)
        return MergedStrategies(
            base, tuple(NodeStrategy(e.name, e.node_selector, overlay(base, _struct(e))) for e in entries)
        )


def _struct(entry: NodeEntry) -> msgspec.Struct:
    assert isinstance(entry, msgspec.Struct)
    return entry
