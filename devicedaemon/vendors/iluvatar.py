"""Iluvatar's GPUs, read by ixsmi, which has nvidia-smi's options (spec 08 §2.6)."""

from __future__ import annotations

import re

from devicedaemon.vendors.node import HEALTHY, HostNode, ToolError, VendorError, counted, each, memory, shared
from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoTopology
from koordlet.app.logging import get_logger

log = get_logger(__name__)

VENDOR = "iluvatar"
TOOL = "ixsmi"
LIST = (TOOL, "--list-gpus")
_UUID = re.compile(r"\(UUID: ([^)\s]+)\)")


async def discover(node: HostNode) -> list[DeviceDescription]:
    """Raises VendorError."""
    listed = [line for line in (await node.tools.run(*LIST)).splitlines() if line.strip()]
    model = model_of(await node.tools.run(*_query("gpu_name", "0")))
    size = memory_of(await node.tools.run(*_query("memory.total", "0")))

    async def describe(name: str) -> DeviceDescription:
        return DeviceDescription(
            vendor=VENDOR,
            model=model,
            uuid=uuid_of(listed[int(name)], name),
            minor=name,
            resources=shared(size),
            topology=await _topology(node, name),
            status=HEALTHY,
        )

    return await each(VENDOR, map(str, counted(len(listed), " ".join(LIST))), describe)


async def _topology(node: HostNode, name: str) -> DeviceInfoTopology | None:
    """None if the tool does not report the PCI address."""
    try:
        return node.topology((await node.tools.run(*_query("pci.bus_id", name))).strip())
    except ToolError as error:
        log.debug("No PCI address reported for a device", vendor=VENDOR, device=name, error=str(error))
        return None


def _query(what: str, name: str) -> tuple[str, ...]:
    return TOOL, f"--query-gpu={what}", "--format=csv,noheader", f"--id={name}"


def model_of(text: str) -> str:
    """`Iluvatar BI-V150` -> Iluvatar-BI-V150."""
    if not text.strip():
        raise VendorError(f"{TOOL}: no gpu_name")
    return "-".join(text.split())


def memory_of(text: str) -> str:
    """`32768 MiB` -> 32768Mi."""
    return memory("".join(text.split()).replace("MiB", "Mi"), f"{TOOL} memory.total")


def uuid_of(line: str, name: str) -> str:
    """`GPU 0: Iluvatar BI-V150 (UUID: GPU-…)`; without a UUID, a name made from the number."""
    match = _UUID.search(line)
    return match[1] if match else f"{VENDOR}-{name}"
