"""From a ConfigMap document to the strategy of each node (spec 01 §6.3).

The cluster strategy is laid over the defaults and each node entry over the cluster strategy, once, when the
ConfigMap changes. A node takes the first entry whose selector matches its labels, alone, else the cluster
strategy. An absent selector matches nothing, `{}` everything, an invalid one is skipped.
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
    """What every element of `nodeConfigs` and `nodeStrategies` has beside the strategy fields."""

    @property
    def name(self) -> str: ...
    @property
    def node_selector(self) -> LabelSelector | None: ...


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether an entry's selector takes a node; an invalid one does not."""
    if selector is None:
        return False
    try:
        return selector.matches(labels)
    except SelectorError:
        return False


@dataclass(frozen=True)
class NodeStrategy(Generic[S]):
    """A node entry with everything merged in."""

    name: str
    selector: LabelSelector | None
    strategy: S


@dataclass(frozen=True)
class Merged(Generic[S]):
    """One key of the ConfigMap, ready to be asked for a node."""

    cluster: S
    nodes: tuple[NodeStrategy[S], ...] = ()

    def for_node(self, labels: Mapping[str, str]) -> S:
        """The strategy of a node with these labels."""
        for entry in self.nodes:
            if selects(entry.selector, labels):
                return entry.strategy
        return self.cluster

    def map_nodes(self, change: Callable[[S], S]) -> Merged[S]:
        """The same with every entry's strategy changed."""
        nodes = (NodeStrategy(entry.name, entry.selector, change(entry.strategy)) for entry in self.nodes)
        return Merged(self.cluster, tuple(nodes))

    @staticmethod
    def build(defaults: P, cluster: msgspec.Struct | None, entries: Iterable[NodeEntry]) -> Merged[P]:
        """Lay the parts over each other. `entries` are structs that extend the strategy's type."""
        base = overlay(defaults, cluster)
        return Merged(base, tuple(NodeStrategy(e.name, e.node_selector, overlay(base, _struct(e))) for e in entries))


def _struct(entry: NodeEntry) -> msgspec.Struct:
    assert isinstance(entry, msgspec.Struct)
    return entry
