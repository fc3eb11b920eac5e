"""The devices of a node in `koordctl node NAME`: by NUMA node and PCIe switch, and who holds them, from the scheduler
that leads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import aiohttp
from rich.text import Text

from control.ctl.errors import CtlError
from control.ctl.views.cpumap import LETTERS, MORE
from control.ctl.views.schedulerclient import fetch_page
from koordlet.api import names
from koordlet.api.cpus import format_cpus
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.pages.nodedevices import NodeDevicePage, PagePlace

PERCENT: Final = {
    "gpu": names.RESOURCE_GPU_MEMORY_RATIO,
    "rdma": names.RESOURCE_RDMA,
    "fpga": names.RESOURCE_FPGA,
}
"""Type -> the resource that counts what is left of a device."""


async def fetch_devices(url: str, node: str, session: aiohttp.ClientSession | None = None) -> NodeDevicePage | None:
    """The page; None if the scheduler knows no devices of the node, or does not respond (see `fetch_cpus`)."""
    try:
        path = f"/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/{quote(node, safe='')}"
        return await fetch_page(url, path, NodeDevicePage, session)
    except CtlError:
        return None


def device_page(page: NodeDevicePage) -> Iterator[Text]:
    """One line per list item; nothing for a node without devices."""
    if not page.total:
        return
    counts = (
        f"{kind} {len(minors)}, {sum(_left(page, kind, minor) == 'free' for minor in minors)} free"
        for kind, minors in sorted(page.total.items())
    )
    yield Text()
    yield Text.assemble(("Devices", "bold"), f": {'; '.join(counts)}")
    marks = _marks(page)
    places: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for kind, minors in sorted(page.total.items()):
        for minor in sorted(minors, key=int):
            place = page.places.get(kind, {}).get(minor) or PagePlace()
            places.setdefault((place.numa_node, place.pcie), []).append((kind, minor))
    numa_shown: int | None = None
    for (numa, pcie), devices in sorted(places.items()):
        if numa != numa_shown:
            numa_shown = numa
            yield Text(f"  NUMA node {numa}" if numa >= 0 else "  unknown NUMA node")
        parts = (f"{kind} {minor} {_state(page, kind, minor, marks)}" for kind, minor in devices)
        yield Text(f"    {f'PCIe {pcie}' if pcie else 'no switch'}: {', '.join(parts)}")
    for pod, mark in marks.items():
        if mark != MORE:
            yield Text(f"  {mark}  {pod}: {_held(page, pod)}")
    rest = sum(mark == MORE for mark in marks.values())
    if rest:
        yield Text(f"  {MORE}  {rest} more pods")


def _marks(page: NodeDevicePage) -> dict[str, str]:
    """Pod -> its mark."""
    pods = sorted({pod for by_pod in page.holders.values() for pod in by_pod})
    return {pod: LETTERS[at] if at < len(LETTERS) else MORE for at, pod in enumerate(pods)}


def _state(page: NodeDevicePage, kind: str, minor: str, marks: dict[str, str]) -> str:
    holders = "".join(
        dict.fromkeys(marks[pod] for pod, minors in sorted(page.holders.get(kind, {}).items()) if minor in minors)
    )
    left = _left(page, kind, minor)
    return " ".join(filter(None, (holders, left))) or "held"


def _left(page: NodeDevicePage, kind: str, minor: str) -> str:
    """`free`, `30% left`, empty if nothing is left, or `failed`."""
    total, free = page.total[kind][minor], page.free.get(kind, {}).get(minor, {})
    if not total:
        return "failed"
    if free == total:
        return "free"
    name = PERCENT.get(kind, "")
    whole = Quantity(total.get(name, "0")).value()
    share = 100 * Quantity(free.get(name, "0")).value() // whole if whole else 0
    return f"{share}% left" if share else ""


def _held(page: NodeDevicePage, pod: str) -> str:
    parts = []
    for kind, by_pod in sorted(page.holders.items()):
        if pod in by_pod:
            parts.append(f"{kind} {format_cpus(map(int, by_pod[pod]))}")
    return ", ".join(parts)
