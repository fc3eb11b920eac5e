"""The CPUs of a node in `koordctl node NAME`: cores by NUMA node and who holds them, from the scheduler that leads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import ascii_lowercase, ascii_uppercase
from typing import Final
from urllib.parse import quote

import aiohttp
from rich.text import Text

from control.ctl.errors import CtlError
from control.ctl.views.schedulerclient import fetch_page
from koordlet.api.cpus import format_cpus, parse_cpus
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.pages.nodecpus import NodeCPUPage, PageCPU

LETTERS: Final = ascii_uppercase + ascii_lowercase
MORE, FREE, RESERVED = "*", ".", "#"
"""Marks of the pods after the letters, of free and of reserved CPUs."""
CORES_PER_LINE: Final = 16


async def fetch_cpus(url: str, node: str, session: aiohttp.ClientSession | None = None) -> NodeCPUPage | str:
    """The page, or why there is none."""
    try:
        path = f"/apis/v1/plugins/NodeNUMAResource/nodes/{quote(node, safe='')}"
        page = await fetch_page(url, path, NodeCPUPage, session)
    except CtlError as error:
        return error.message
    return "the scheduler has no plugin NodeNUMAResource" if page is None else page


def cpu_page(page: NodeCPUPage) -> Iterator[Text]:
    """One line per list item."""
    details = [*page.cpu_topology.cpu_details.values()]
    free, reserved = parse_cpus(page.available_cpus), parse_cpus(page.reserved_cpus)
    policies = ", ".join(filter(None, (page.policy if page.policy != "None" else "", page.numa_topology_policy)))
    yield Text()
    yield Text.assemble(
        ("CPUs", "bold"),
        f"{f' ({policies})' if policies else ''}: {len(details)}, {len(free)} free, {len(reserved)} reserved",
    )
    marks = _marks(page)
    for node in sorted({cpu.node_id for cpu in details}):
        here = [cpu for cpu in details if cpu.node_id == node]
        sockets = ", ".join(str(socket) for socket in sorted({cpu.socket_id for cpu in here}))
        yield Text(f"  NUMA node {node}, socket {sockets}{_amounts(page, node)}")
        for line in _cores(here, marks, free, reserved):
            yield Text(f"    {line}")
    for mark, (name, cpuset, exclusive) in _legend(page).items():
        yield Text(f"  {mark}  {name}: {cpuset}{f', {exclusive}' if exclusive else ''}")
    if free:
        yield Text(f"  {FREE}  free, the pool of pods without CPUs of their own: {format_cpus(free)}")
    if reserved:
        yield Text(f"  {RESERVED}  reserved: {format_cpus(reserved)}")


def _marks(page: NodeCPUPage) -> dict[int, str]:
    """CPU -> the mark of its pod."""
    return {cpu: mark for mark, pods in _pods(page).items() for pod in pods for cpu in parse_cpus(pod)}


def _pods(page: NodeCPUPage) -> dict[str, list[str]]:
    """Mark -> the CPU lists of its pods."""
    pods: dict[str, list[str]] = {}
    for number, pod in enumerate(_ordered(page)):
        pods.setdefault(LETTERS[number] if number < len(LETTERS) else MORE, []).append(pod[1])
    return pods


def _legend(page: NodeCPUPage) -> dict[str, tuple[str, str, str]]:
    """Mark -> (pod, CPUs, exclusive policy); one line for all pods without a letter."""
    ordered = _ordered(page)
    legend = dict(zip(LETTERS, ordered, strict=False))
    rest = ordered[len(LETTERS) :]
    if rest:
        legend[MORE] = (
            f"{len(rest)} more pods",
            format_cpus(cpu for pod_cpus in rest for cpu in parse_cpus(pod_cpus[1])),
            "",
        )
    return legend


def _ordered(page: NodeCPUPage) -> list[tuple[str, str, str]]:
    pods = [
        (f"{pod.namespace}/{pod.name}", pod.cpuset, pod.cpu_exclusive_policy)
        for pod in page.allocated_pods.values()
        if pod.cpuset
    ]
    return sorted(pods, key=lambda pod: (min(parse_cpus(pod[1])), pod))


def _cores(
    cpus: list[PageCPU], marks: Mapping[int, str], free: frozenset[int], reserved: frozenset[int]
) -> Iterator[str]:
    """Cores as one mark per CPU, several cores per line."""
    cores: dict[int, list[int]] = {}
    for cpu in sorted(cpus, key=lambda page_cpu: (page_cpu.core_id, page_cpu.cpu_id)):
        cores.setdefault(cpu.core_id, []).append(cpu.cpu_id)

    def mark(cpu: int) -> str:
        return marks.get(cpu) or (FREE if cpu in free else RESERVED if cpu in reserved else "?")

    cells = ["".join(mark(cpu) for cpu in core) for core in cores.values()]
    for begin in range(0, len(cells), CORES_PER_LINE):
        yield " ".join(cells[begin : begin + CORES_PER_LINE])


def _amounts(page: NodeCPUPage, node: int) -> str:
    """What is left of a zone's resources."""
    total = next((zone.resources for zone in page.numa_node_resources if zone.node == node), {})
    left = page.remaining.get(str(node), {})
    parts = [f"{name} {_short(left[name])} of {_short(total[name])} left" for name in sorted(total) if name in left]
    return f": {', '.join(parts)}" if parts else ""


def _short(amount: str) -> str:
    """`8` for 8000m, `1.5Gi` for bytes above 1 MiB."""
    quantity = Quantity(amount)
    if amount.endswith("m"):
        return str(quantity)
    number = quantity.value()
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20)):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + unit
    return str(number)
