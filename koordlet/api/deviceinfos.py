"""The files in `--xpu-device-infos-dir` that describe accelerators to koordlet (spec 08 §1.3). Pure.

A file is a JSON array of these objects; all numbers are texts. koord-device-daemon writes one file; other programs may
add more. koordlet reads all.
"""

from __future__ import annotations

import json

import msgspec

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.wire import WireError, convert


class P2PLink(Frozen):
    """Devices that are directly linked to this one."""

    peer_minor: str = ""
    """comma-separated minors"""
    type: str = ""
    """HCCS"""


class DeviceInfoTopology(Frozen):
    """The location of the device."""

    p2p_links: list[P2PLink] = []
    must_honor_partition: bool = False
    socket_id: str = msgspec.field(default="", name="socketID")
    node_id: str = msgspec.field(default="", name="nodeID")
    pcie_id: str = msgspec.field(default="", name="pcieID")
    bus_id: str = msgspec.field(default="", name="busID")


class DeviceInfoStatus(Frozen):
    """The health of the device."""

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
    resources: dict[str, str] = {}
    """resource -> quantity"""
    topology: DeviceInfoTopology | None = None
    status: DeviceInfoStatus | None = None


def read_descriptions(data: bytes, *, where: str) -> list[DeviceDescription]:
    """The devices of one file; content after the first JSON value is ignored. Raises WireError, which names `where` and
    the field."""
    try:
        value, _ = json.JSONDecoder().raw_decode(data.decode().lstrip())
    except (ValueError, RecursionError) as error:
        raise WireError(f"is not valid JSON: {error}", where=where) from error
    devices: list[DeviceDescription] = convert(value, list[DeviceDescription], where=where)
    return devices
