"""Huawei's NPUs, read by npu-smi (spec 08 §2.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from devicedaemon.vendors.node import HEALTHY, HostNode, ToolError, VendorError, each, lines_with, number, total, word
from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoStatus, P2PLink
from koordlet.api.names import (
    RESOURCE_GPU_MEMORY,
    RESOURCE_HUAWEI_NPU_CORE,
    RESOURCE_HUAWEI_NPU_CPU,
    RESOURCE_HUAWEI_NPU_DVPP,
)
from koordlet.app.logging import get_logger

log = get_logger(__name__)

VENDOR = "huawei"
INFO = ("npu-smi", "info")
CORES = {"Ascend-310P3": 8}
CPUS = {"Ascend-910B": 0, "Ascend-910B2": 6, "Ascend-910B3": 7, "Ascend-910B4": 7}
"""By model; for other models, the tool reports them."""
NO_MEMORY_COMMAND = "Command or option is not found"
MEMORY_WITHOUT_COMMAND = 21527
"""MiB of a 310P3, whose tool may not have the command."""
ALL_DVPP = "100"
HCCS = "HCCS"
_DAVINCI = re.compile(r"davinci([0-9]{1,6})")
_COLUMN = re.compile(r"NPU([0-9]{1,6})")


async def discover(node: HostNode) -> list[DeviceDescription]:
    """Raises VendorError."""
    run = node.tools.run
    model = model_of(await run(*INFO, "-m"))
    numbered = pair(cards_of(await run(*INFO, "-l")), _minors(node))
    first = next(iter(numbered))
    cores = CORES.get(model)
    if cores is None:
        cores = cores_of(await run(*INFO, "-t", "common", "-i", first))
    cpus = CPUS.get(model)
    if cpus is None:
        cpus = cpus_of(await run(*INFO, "-t", "cpu-num-cfg", "-i", first))

    async def describe(card: str) -> DeviceDescription:
        minor = numbered[card]
        board = await run(*INFO, "-t", "board", "-i", card)
        return DeviceDescription(
            vendor=VENDOR,
            model=model,
            uuid=f"npu-{card}-{minor}",
            minor=str(minor),
            resources={
                RESOURCE_GPU_MEMORY: f"{await _memory(node, card)}Mi",
                RESOURCE_HUAWEI_NPU_CORE: str(cores),
                RESOURCE_HUAWEI_NPU_CPU: str(cpus),
                RESOURCE_HUAWEI_NPU_DVPP: ALL_DVPP,
            },
            topology=node.topology(bus_of(board), links=await _links(node, card, numbered)),
            status=status_of(board, card),
        )

    return await each(VENDOR, numbered, describe)


def _minors(node: HostNode) -> list[int]:
    try:
        names = [entry.name for entry in node.dev.iterdir()]
    except OSError as error:
        raise VendorError(f"{node.dev}: {error.strerror}") from error
    return minors_of(names)


async def _memory(node: HostNode, card: str) -> int:
    try:
        return memory_of(await node.tools.run(*INFO, "-t", "memory", "-i", card))
    except ToolError as error:
        if NO_MEMORY_COMMAND in error.output:
            return MEMORY_WITHOUT_COMMAND
        raise


async def _links(node: HostNode, card: str, numbered: Mapping[str, int]) -> list[P2PLink]:
    """Empty if the tool does not report links; the device is described without them."""
    try:
        peers = peers_of(await node.tools.run(*INFO, "-t", "topo", "-i", card), card)
    except ToolError as error:
        log.debug("No links reported for a device", vendor=VENDOR, card=card, error=str(error))
        return []
    minors = sorted(numbered[peer] for peer in peers if peer in numbered)
    return [P2PLink(peer_minor=",".join(map(str, minors)), type=HCCS)] if minors else []


def model_of(text: str) -> str:
    """`npu-smi info -m`: `… Ascend 910B3` -> Ascend-910B3."""
    lines, where = text.splitlines(), "npu-smi info -m"
    if len(lines) < 2:
        raise VendorError(f"{where}: no second line")
    return f"{word(lines[1], -2, where)}-{word(lines[1], -1, where)}"


def cards_of(text: str) -> list[str]:
    """`npu-smi info -l`."""
    where = "npu-smi info -l"
    cards = [str(number(line, where)) for line in lines_with(text, "NPU ID")]
    if not cards:
        raise VendorError(f"{where}: no card")
    return list(dict.fromkeys(cards))


def minors_of(names: list[str]) -> list[int]:
    """Numbers of /dev/davinci<N>, ascending."""
    return sorted(int(match[1]) for name in names if (match := _DAVINCI.fullmatch(name)))


def pair(cards: list[str], minors: list[int]) -> dict[str, int]:
    """Card -> minor, both in order; cards without a minor are skipped. Raises VendorError without any minor."""
    if not minors:
        raise VendorError("there is no /dev/davinci<N>")
    for card in cards[len(minors) :]:
        log.warning("Device skipped", vendor=VENDOR, device=card, error="there are fewer /dev/davinci<N> than cards")
    return dict(zip(cards, minors, strict=False))


def memory_of(text: str) -> int:
    """MiB, from `npu-smi info -t memory`."""
    mebibytes = total(lines_with(text, "DDR Capacity", "HBM Capacity"), "the memory size", "npu-smi … -t memory")
    if not mebibytes:
        raise VendorError("npu-smi … -t memory: no memory")
    return mebibytes


def cores_of(text: str) -> int:
    """`npu-smi info -t common`."""
    return total(lines_with(text, "Aicore Count"), "Aicore Count", "npu-smi … -t common")


def cpus_of(text: str) -> int:
    """`npu-smi info -t cpu-num-cfg`."""
    return total(lines_with(text, "AI"), "the number of AI CPUs", "npu-smi … -t cpu-num-cfg")


def bus_of(board: str) -> str:
    """`npu-smi info -t board`."""
    lines, where = lines_with(board, "PCIe Bus Info"), "npu-smi … -t board"
    if not lines:
        raise VendorError(f"{where}: no PCIe Bus Info")
    return word(lines[0], -1, where)


def status_of(board: str, card: str) -> DeviceInfoStatus:
    """`npu-smi info -t board`."""
    faults = sum(number(line, "npu-smi … -t board") for line in lines_with(board, "Chip Fault"))
    if not faults:
        return HEALTHY
    return DeviceInfoStatus(err_code="ChipError", err_message=f"NPU index {card} has {faults} chip faults")


def peers_of(text: str, card: str) -> list[str]:
    """Cards linked to this one by HCCS, from `npu-smi info -t topo`: a table with a column and a row per card."""
    columns: list[str] = []
    for line in text.splitlines():
        words = line.split()
        heads = [_COLUMN.fullmatch(column) for column in words]
        if len(words) > 1 and heads[0] and heads[1]:
            columns = [match[1] for match in heads if match]
        elif columns and words and words[0] == f"NPU{card}":
            return [peer for peer, kind in zip(columns, words[1:], strict=False) if kind == HCCS and peer != card]
    return []
