"""Separates CPU time that a hypervisor took away from delays caused by co-located containers. Pure.

On a virtual machine, a CPU can be taken away for some time (steal in /proc/stat). To the guest, the task that was
running keeps the CPU during that time, so tasks that wait for this CPU seem to wait for that task; when the CPU is
back, the tasks that queued up meanwhile wait for each other. Of the waiting behind a runner, at most this much is
caused by the runner itself:

 1. what remains without the fraction `stolen / (stolen + busy)` of the time in which a task held a CPU: in that
    fraction no task made progress;
 2. the victim's wanted time times the runner's CPU use in cores. A runner that used 0.01 CPU seconds in a second can
    have delayed the victim for a hundredth of its wanted time, unless a queue brought the two together.

The rest is attributed to the hypervisor, but for each waiting task no more than the time that CPUs were stolen. CPU use
as counted by cgroups excludes stolen time (kernels with CONFIG_PARAVIRT_TIME_ACCOUNTING). Nothing in this module runs
while almost nothing is stolen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import Floats, ratio
from koordlet.statesinformer.pods.cgroupindex import Owner

HYPERVISOR = Owner("hypervisor", "hypervisor")


@dataclass(frozen=True, slots=True)
class Steal:
    """CPU time stolen over a window, and how the remaining CPU time was used, in cores."""

    cores: float
    """Stolen; more than 0."""
    busy: float
    """Used by everything on the node."""
    ran: Floats
    """Used by each container."""

    @property
    def fraction(self) -> float:
        """Stolen fraction of the time in which a task held a CPU, 0..1."""
        return self.cores / (self.cores + self.busy)

    @property
    def ran_outside(self) -> float:
        """Cores used outside the containers."""
        return max(self.busy - float(self.ran.sum()), 0.0)

    def limit(self, waited: Floats) -> Floats:
        """Upper bound of the hypervisor's part in `waited`, both in seconds per second."""
        bound: Floats = self.cores * np.maximum(waited, 1.0)
        return bound

    def taken(self, waits: Floats, wanted_cores: Floats, runner_cores: Floats) -> Floats:
        """[victims, runners]: the hypervisor's part of `waits`, in seconds per second. `wanted_cores`: seconds per
        second that a victim wanted to run; `runner_cores`: cores that a runner can have used while the victim
        waited."""
        by_runner = np.minimum(waits * (1.0 - self.fraction), runner_cores * wanted_cores[:, None])
        excess = waits - by_runner
        limit = self.limit(waits.sum(axis=1))
        part: Floats = excess * np.minimum(ratio(limit, excess.sum(axis=1)), 1.0)[:, None]
        return part

    def taken_by_container(self, victims: NDArray[np.intp], waits: Floats, wanted_cores: Floats) -> Floats:
        """`taken`, where runner i is container i and the last runner is everything outside containers. A victim's own
        threads may wait for each other all the time, so they have no upper bound."""
        runner_cores = np.tile(np.append(self.ran, self.ran_outside), (len(waits), 1))
        runner_cores[np.arange(len(waits)), victims] = np.inf
        return self.taken(waits, wanted_cores, runner_cores)
