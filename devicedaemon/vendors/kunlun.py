"""Baidu's Kunlun XPUs, read by xpu_smi (spec 08 §2.3)."""

from __future__ import annotations

from devicedaemon.vendors.node import HEALTHY, HostNode, VendorError, counted, each, memory, shared, word
from koordlet.api.deviceinfos import DeviceDescription

VENDOR = "kunlun"
LIST = ("xpu_smi", "-m")
MODEL_WORD, MEMORY_WORD = 21, 18
"""Indexes of words in a line, from 0."""


async def discover(node: HostNode) -> list[DeviceDescription]:
    """Raises VendorError."""
    count, model, size = overview(await node.tools.run(*LIST))

    async def describe(name: str) -> DeviceDescription:
        where = (*LIST, "-d", f"/dev/xpu{name}")
        return DeviceDescription(
            vendor=VENDOR,
            model=model,
            uuid=f"xpu-{name}",
            minor=name,
            resources=shared(size),
            topology=node.topology(word(await node.tools.run(*where), 0, " ".join(where))),
            status=HEALTHY,
        )

    return await each(VENDOR, map(str, counted(count, " ".join(LIST))), describe)


def overview(text: str) -> tuple[int, str, str]:
    """(number of devices, model, memory): one line per device, all devices alike."""
    lines, where = [line for line in text.splitlines() if line.strip()], " ".join(LIST)
    if not lines:
        raise VendorError(f"{where}: prints nothing")
    return len(lines), word(lines[0], MODEL_WORD, where), memory(f"{word(lines[0], MEMORY_WORD, where)}Mi", where)
