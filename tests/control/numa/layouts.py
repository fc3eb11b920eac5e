"""Regular layouts of CPUs, and a plain form of the CPU search."""

from __future__ import annotations

from control.numa.layout import CoreLayout, layout_of
from control.numa.masks import mask_of, numbers_of
from koordlet.api.cpus import parse_cpus


def layout(sockets: int, nodes: int, cores: int, threads: int) -> CoreLayout:
    """Sockets, NUMA nodes per socket, cores per NUMA node, CPUs per core; ids are consecutive."""
    cpus = []
    for socket in range(sockets):
        for node in range(nodes):
            for core in range(cores):
                for thread in range(threads):
                    number = ((socket * nodes + node) * cores + core) * threads + thread
                    cpus.append((number, number // threads, socket, socket * nodes + node))
    return layout_of(cpus)


def mask(text: str) -> int:
    return mask_of(parse_cpus(text))


def cpus(value: int) -> list[int]:
    return list(numbers_of(value))
