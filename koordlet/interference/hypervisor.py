"""What a hypervisor took of the CPUs, told apart from what neighbours did. Pure.

On a virtual machine a CPU may be taken away for a while (steal in /proc/stat). Who had it then has it all that time, as
the guest sees it, and whoever waits for that CPU seems to wait for him; when the CPU is back, those who gathered
meanwhile wait for each other. Of the waiting behind somebody, this is his at the most:

 1. what is left without the part `stolen / (stolen + busy)` of the time that anybody had a CPU: nobody ran then;
 2. the part of the victim's time that is his part of the time. One who ran for a hundredth of a second in a second is
    in the way of what a victim wants for a hundredth of its time, unless a queue has brought both together.

What is above that is the hypervisor's, but no more than the time that CPUs were stolen, for each task that waited. Use
as cgroups count it leaves stolen time out (kernels with CONFIG_PARAVIRT_TIME_ACCOUNTING). Where next to nothing is
stolen nothing here is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import Floats, part_of
from koordlet.statesinformer.pods.cgroupindex import Owner

HYPERVISOR = Owner("hypervisor", "hypervisor")


@dataclass(frozen=True, slots=True)
class Stolen:
    """What was stolen over a window, and who used what was left, in cores."""

    cores: float
    """More than 0."""
    busy: float
    """Used by everything on the node."""
    ran: Floats
    """Used by each container."""

    @property
    def part(self) -> float:
        """Of the time that anybody had a CPU, 0..1."""
        return self.cores / (self.cores + self.busy)

    @property
    def strangers(self) -> float:
        """Used by what is no container."""
        return max(self.busy - float(self.ran.sum()), 0.0)

    def limit(self, waited: Floats) -> Floats:
        """What of so much waiting, seconds a second, can be the hypervisor's at the most."""
        found: Floats = self.cores * np.maximum(waited, 1.0)
        return found

    def taken(self, waits: Floats, wanted: Floats, most: Floats) -> Floats:
        """[victims, runners], of `waits` (seconds a second) what was the hypervisor's. `wanted`: seconds a second that
        a victim wanted to run; `most`: cores that a runner can have stood in its way with."""
        theirs = np.minimum(waits * (1.0 - self.part), most * wanted[:, None])
        above = waits - theirs
        limit = self.limit(waits.sum(axis=1))
        found: Floats = above * np.minimum(part_of(limit, above.sum(axis=1)), 1.0)[:, None]
        return found

    def taken_from(self, victims: NDArray[np.intp], waits: Floats, wanted: Floats) -> Floats:
        """`taken` where runner i is container i and the last one whatever is no container. A victim's own threads may
        wait for each other all the time."""
        most = np.tile(np.append(self.ran, self.strangers), (len(waits), 1))
        most[np.arange(len(waits)), victims] = np.inf
        return self.taken(waits, wanted, most)
