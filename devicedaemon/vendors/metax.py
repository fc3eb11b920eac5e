"""MetaX's GPUs, read by mx-smi (spec 08 §2.5)."""

from __future__ import annotations

import re

from devicedaemon.vendors.node import (
    HEALTHY,
    HostNode,
    VendorError,
    counted,
    each,
    lines_with,
    memory,
    number,
    shared,
    word,
)
from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoStatus
from koordlet.app.logging import get_logger

log = get_logger(__name__)

VENDOR = "metax"
TOOL = "mx-smi"
HARDWARE = (TOOL, "--show-hwinfo")
UNCORRECTABLE = ("SRAM Uncorrectable", "DRAM Uncorrectable", "Double Bit ECC")


async def discover(node: HostNode) -> list[DeviceDescription]:
    """Raises VendorError."""
    count, model, size = overview(await node.tools.run(*HARDWARE))
    listed = await node.tools.run(TOOL, "--list")

    async def describe(name: str) -> DeviceDescription:
        uuid = uuid_of(listed, name)
        bus_id = bus_of(await node.tools.run(*HARDWARE, "-i", name))
        return DeviceDescription(
            vendor=VENDOR,
            model=model,
            uuid=uuid,
            minor=name,
            resources=shared(size),
            topology=node.topology(bus_id),
            status=await _status(node, name),
        )

    return await each(VENDOR, map(str, counted(count, " ".join(HARDWARE))), describe)


async def _status(node: HostNode, name: str) -> DeviceInfoStatus:
    """A GPU without error counts is taken to be healthy."""
    try:
        return status_of(await node.tools.run(TOOL, "--count-ecc", "-i", name), name)
    except VendorError as error:
        log.warning("No error counts for a device", vendor=VENDOR, device=name, error=str(error))
        return HEALTHY


def overview(text: str) -> tuple[int, str, str]:
    """(number of GPUs, model, memory) from `mx-smi --show-hwinfo`."""
    where = " ".join(HARDWARE)
    models = [line for line in text.splitlines() if "model name" in line.lower()]
    sizes = [line for line in text.splitlines() if "memory capacity" in line.lower()]
    if not models or not sizes:
        raise VendorError(f"{where}: no {'Memory Capacity' if models else 'Model Name'}")
    amount = re.match(r"([0-9]+) ?GB( |$)", " ".join(sizes[0].split()[3:]))
    if amount is None:
        raise VendorError(f"{where}: {sizes[0].strip()[:200]!r} is not an amount in GB")
    return len(models), word(models[0], 3, where), memory(f"{amount[1]}Gi", where)


def uuid_of(listed: str, name: str) -> str:
    """From `mx-smi --list`."""
    own = re.compile(rf"(?<![A-Za-z0-9])GPU#{name}(?![0-9])")
    for line in listed.splitlines():
        if own.search(line):
            return word(line, 5, f"{TOOL} --list").strip("()")
    raise VendorError(f"{TOOL} --list: no GPU#{name}")


def bus_of(text: str) -> str:
    """From `mx-smi --show-hwinfo -i`."""
    lines, where = lines_with(text, "GPU#"), f"{' '.join(HARDWARE)} -i"
    if not lines:
        raise VendorError(f"{where}: no GPU#")
    return word(lines[0], 2, where)


def status_of(text: str, name: str) -> DeviceInfoStatus:
    """From `mx-smi --count-ecc -i`: the sum of all uncorrectable errors."""
    errors = sum(number(line, f"{TOOL} --count-ecc") for line in lines_with(text, *UNCORRECTABLE))
    if not errors:
        return HEALTHY
    return DeviceInfoStatus(err_code="ECCError", err_message=f"GPU {name} has {errors} uncorrectable ECC errors")
