"""Opens all probes at once, as koordlet does one after the other."""

from __future__ import annotations

from pathlib import Path

from koordlet.probes.openprobes import ProbeSet, begin_probes
from koordlet.probes.schedlatency.loader import LoadedProbe
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.system.host import Host


def open_probes(
    host: Host,
    choice: str = "auto",
    pin_dir: Path | None = None,
    *,
    mount_bpffs: bool = True,
    sizes: Sizes | None = None,
) -> ProbeSet:
    """Open every probe that the host allows; arguments and errors as `begin_probes`."""
    probes = begin_probes(host, choice, pin_dir, mount_bpffs=mount_bpffs, sizes=sizes)
    while probes.open_next() is not None:
        pass
    return probes


def loaded_sched_latency(probes: ProbeSet) -> LoadedProbe | None:
    """sched_latency with its culprit matrix; None while it is read from files."""
    return probes.sched_latency if isinstance(probes.sched_latency, LoadedProbe) else None
