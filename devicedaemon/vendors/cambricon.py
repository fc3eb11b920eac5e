"""Cambricon's MLUs, read by cnmon (spec 08 §2.4)."""

from __future__ import annotations

import re

from devicedaemon.vendors.node import HostNode, VendorError, counted, each, lines_with, memory, shared, word
from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoStatus

VENDOR = "cambricon"
INFO = ("cnmon", "info")
GOOD = "Good"
_DEVICE = re.compile(r"\s*Device\s*:\s*(.*?)\s*")
_DIGITS = re.compile(r"[0-9a-fA-F]{1,2}")


async def discover(node: HostNode) -> list[DeviceDescription]:
    """Raises VendorError."""
    count, model = overview(await node.tools.run("cnmon", "-l"))
    size = memory_of(await node.tools.run(*INFO))

    async def describe(name: str) -> DeviceDescription:
        card = await node.tools.run(*INFO, "-c", name)
        return DeviceDescription(
            vendor=VENDOR,
            model=model,
            uuid=uuid_of(card),
            minor=name,
            resources=shared(size),
            topology=node.topology(bus_of(card), node_id=node_of(card)),
            status=status_of(card),
        )

    return await each(VENDOR, map(str, counted(count, "cnmon -l")), describe)


def overview(text: str) -> tuple[int, str]:
    """(number of cards, model) from `cnmon -l`."""
    model = next((name for name in text.split() if "MLU" in name), None)
    if model is None:
        raise VendorError("cnmon -l: no model")
    return len(lines_with(text, "UUID")), model


def memory_of(text: str) -> str:
    """The total in the physical memory section of `cnmon info`."""
    lines, where = text.splitlines(), "cnmon info"
    section = next((place for place, line in enumerate(lines) if "Physical Memory Usage" in line), len(lines))
    for line in lines[section + 1 :]:
        if "Total" in line:
            return memory(f"{word(line, -2, where)}Mi", where)
    raise VendorError(f"{where}: no total of physical memory")


def uuid_of(card: str) -> str:
    return word(_line(card, "UUID"), 2, _CARD)


def node_of(card: str) -> str:
    return word(_line(card, "NUMA node id"), -1, _CARD)


def bus_of(card: str) -> str:
    """<domain>:<bus>:<device>.<function>"""
    domain, bus, function = (word(_line(card, part), -1, _CARD) for part in ("Domain ID", "Bus num", "Function"))
    device = next((value for value in _device(card) if _DIGITS.fullmatch(value)), None)
    if device is None:
        raise VendorError(f"{_CARD}: no number of the PCI device")
    return f"{domain}:{bus}:{device}.{function}"


def status_of(card: str) -> DeviceInfoStatus:
    """Healthy if a line has the state `Good`; a line `Device` has either the number on the bus or the state."""
    states = [value for value in _device(card) if not _DIGITS.fullmatch(value)]
    bad = [value for value in states if value != GOOD]
    if bad:
        return DeviceInfoStatus(err_message=f"Device is unhealthy, status: {bad[-1]}")
    return DeviceInfoStatus(healthy=bool(states))


def _device(card: str) -> list[str]:
    return [match[1] for line in card.splitlines() if (match := _DEVICE.fullmatch(line))]


def _line(card: str, part: str) -> str:
    lines = lines_with(card, part)
    if not lines:
        raise VendorError(f"{_CARD}: no {part}")
    return lines[0]


_CARD = "cnmon info -c"
