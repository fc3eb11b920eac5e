"""Who holds the devices of a node, for `koordctl node` (spec 06 §7).

koord-scheduler serves it as JSON under /apis/v1/plugins/DeviceShare/nodeDeviceSummaries/{name}. Only what `koordctl`
shows.
"""

import msgspec

from koordlet.api.encoding.base import Struct

Amounts = dict[str, str]
"""Resource -> amount."""


class PagePlace(Struct):
    """Where a device is."""

    numa_node: int = -1
    pcie: str = ""


class NodeDevicePage(Struct):
    """One node. Maps are type -> minor -> value."""

    total: dict[str, dict[str, Amounts]] = msgspec.field(default_factory=dict, name="deviceTotalDetail")
    free: dict[str, dict[str, Amounts]] = msgspec.field(default_factory=dict, name="deviceFreeDetail")
    holders: dict[str, dict[str, dict[str, Amounts]]] = msgspec.field(default_factory=dict, name="allocateSet")
    """Type -> pod -> minor -> amounts."""
    places: dict[str, dict[str, PagePlace]] = msgspec.field(default_factory=dict, name="devicePlaces")
