"""Memory of host applications with their page cache, as the kernel charges them (spec 02 §5.6).

The tick reads their CPU and their memory without page cache, as for every subject. This collector adds the usage file
(`memory.usage_in_bytes`, `memory.current`) for the NodeMetric policy usageWithPageCache. System use subtracts memory
without page cache on both sides, whatever the policy is. The first reading is a baseline, as for the other figures.
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.app.clock import boot_clock
from koordlet.metriccache import Batch, MetricCache
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import SubjectKind, Workloads
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.errors import CgroupGone, KernelFileError

NAME = "host_application"
SERIES = "host_application_memory_usage_with_page_cache"


class HostAppMemory:
    """`read` is one round."""

    def __init__(
        self,
        fs: CgroupFS,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        *,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._fs = fs
        self._workloads = workloads
        self._clock = clock
        self._output = CollectorOutput(NAME, cache, registries, "No memory usage of a host application")
        self._seen: frozenset[tuple[str, int]] = frozenset()

    def read(self) -> None:
        """Read every host application's usage file and commit those seen before."""
        batch = Batch(self._clock())
        seen = set()
        for subject in self._workloads().subjects:
            if subject.kind is not SubjectKind.HOST_APP:
                continue
            try:
                identity = (subject.key, self._fs.cgroup_id(subject.cgroup_dir))
                usage = self._fs.memory_usage(subject.cgroup_dir)
            except CgroupGone:
                continue
            except KernelFileError as error:
                self._output.fail("unreadable", str(error))
                continue
            if usage is None:
                continue
            seen.add(identity)
            if identity in self._seen:
                batch.add(SERIES, usage, subject.key)
        self._seen = frozenset(seen)
        self._output.commit(batch)
