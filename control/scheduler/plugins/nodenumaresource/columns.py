"""What filters and scores read of all nodes, as columns over the rows (spec 06 §2.4)."""

from __future__ import annotations

from typing import Final

import numpy as np

from control.numa.report import BEST_EFFORT, MAX_ZONES, RESTRICTED, SINGLE_NUMA_NODE
from control.scheduler.state.table import NodeTable
from koordlet.api.annotations.node import BIND_FULL_PCPUS_ONLY, BIND_SPREAD_BY_PCPUS
from koordlet.api.annotations.scheduling import BIND_FULL_PCPUS

FULL, SPREAD = 1, 2
"""Values of `bind_policy`; 0: none."""
BIND_CODES: Final = {BIND_FULL_PCPUS_ONLY: FULL, BIND_FULL_PCPUS: FULL, BIND_SPREAD_BY_PCPUS: SPREAD}
BEST, RESTRICT, ONE_ZONE = 1, 2, 3
"""Values of `numa_policy`; 0: none."""
NUMA_CODES: Final = {BEST_EFFORT: BEST, RESTRICTED: RESTRICT, SINGLE_NUMA_NODE: ONE_ZONE}
ANY, WHOLE, FIRST = range(3)
"""Index of `cpus`: free CPUs, CPUs on free cores, cores with a free CPU."""
UNPUBLISHED: Final = -1
MAX_RESOURCES: Final = 64
"""Resources of zones that are kept; a node's report may name any."""


class NumaColumns:
    """Zones are addressed by their positions in the node's list of zones."""

    def __init__(self, table: NodeTable) -> None:
        self.bind_policy = table.column(np.int8)
        self.numa_policy = table.column(np.int8)
        self.cpus_per_core = table.column(np.int64)
        """0 without a valid CPU topology."""
        self.cpus = table.matrix(3, dtype=np.int64)
        """[ANY to FIRST, row]"""
        self.ratio = table.column(np.int64)
        """Of cpu, see `ratios`; 0 if the node has none."""
        self.bound = table.column(np.int64)
        """CPUs that pods hold."""
        self.zones = table.column(np.int64)
        """Number of zones."""
        self.zone_status = table.matrix(MAX_ZONES, dtype=np.int8)
        """[zone, row]: 0 idle, 1 single, 2 shared."""
        self.zone_cpus = table.matrix(MAX_ZONES, 3, dtype=np.int64)
        """[zone, ANY to FIRST, row]"""
        self.zone_total = table.matrix(MAX_ZONES, 2, dtype=np.int64, fill=UNPUBLISHED)
        """[zone, resource, row]: amplified; UNPUBLISHED if the zone does not list the resource."""
        self.zone_available = table.matrix(MAX_ZONES, 2, dtype=np.int64)
        """[zone, resource, row]"""
        self.resources: dict[str, int] = {"cpu": 0, "memory": 1}
        """Index of each resource in `zone_total` and `zone_available`."""

    def resource(self, name: str) -> int | None:
        """The index of a resource. A new resource gets a new one; None after `MAX_RESOURCES`."""
        index = self.resources.get(name)
        if index is None:
            if len(self.resources) == MAX_RESOURCES:
                return None
            index = self.resources[name] = len(self.resources)
            for matrix in (self.zone_total, self.zone_available):
                matrix.widen(MAX_ZONES, len(self.resources))
        return index
