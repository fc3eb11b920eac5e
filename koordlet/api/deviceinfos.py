"""The files that describe accelerators to koordlet: any program may put some into `--xpu-device-infos-dir`.

A file is a JSON array of these objects; every number in them is text. koord-device-daemon writes one, koordlet reads
all. Source: spec 08 §1.3.
"""

from __future__ import annotations

import json

import msgspec

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.wire import WireError, convert


class P2PLink(Frozen):
    """Devices that are linked to this one directly."""

    peer_minor: str = ""
    """minors, separated by commas"""
    type: str = ""
    """HCCS"""


class DeviceTopology(Frozen):
    """Where the device sits."""

    p2p_links: list[P2PLink] = msgspec.field(default_factory=list)
    must_honor_partition: bool = False
    socket_id: str = msgspec.field(default="", name="socketID")
    node_id: str = msgspec.field(default="", name="nodeID")
    pcie_id: str = msgspec.field(default="", name="pcieID")
    bus_id: str = msgspec.field(default="", name="busID")


class DeviceStatus(Frozen):
    """Whether it works."""

    healthy: bool = written(bool)
    err_code: str = ""
    err_message: str = ""


class DeviceDescription(Frozen):
    """One accelerator."""

    vendor: str = written(str)
    model: str = written(str)
    uuid: str = written(str)
    minor: str = written(str)
    """decimal, as in /dev/xxxN"""
    resources: dict[str, str] = msgspec.field(default_factory=dict)
    """resource -> quantity"""
    topology: DeviceTopology | None = None
    status: DeviceStatus | None = None


def read_descriptions(data: bytes, *, where: str) -> list[DeviceDescription]:
    """The devices of one file. Only its first JSON value counts. Raises WireError naming `where` and the field."""
    try:
        value, _ = json.JSONDecoder().raw_decode(data.decode().lstrip())
    except (ValueError, RecursionError) as error:
        raise WireError(f"is not valid JSON: {error}", where=where) from error
    found: list[DeviceDescription] = convert(value, list[DeviceDescription], where=where)
    return found
