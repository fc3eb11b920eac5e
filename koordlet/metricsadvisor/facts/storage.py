"""Keeps the fact `node_local_storage_info`: disks, partitions, volume groups, mounts (spec 02 §5.9).

Each round polls one descriptor and reads one short file. sysfs is read only when a device or a mount changed, and once
a minute for changes that these do not show (a renamed volume).
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.app.clock import boot_clock
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.prometheus import Registries
from koordlet.system.devices.storage import LocalStorage, StorageWatch, read_local_storage
from koordlet.system.errors import KernelFileError
from koordlet.system.roots import Roots

NAME = "node_storage_info"
FACT_STORAGE = "node_local_storage_info"
REREAD_S = 60.0


class StorageInfoCollector:
    """`read` is one round. A round that fails leaves the last fact in the cache, with its old time stamp."""

    def __init__(
        self,
        roots: Roots,
        cache: MetricCache,
        registries: Registries,
        conditions: CollectorConditions,
        *,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._roots = roots
        self._cache = cache
        self._registries = registries
        self._conditions = conditions
        self._clock = clock
        self._watch = StorageWatch(roots)
        self._read_at = float("-inf")
        self.latest: LocalStorage | None = None

    def close(self) -> None:
        """Close the descriptor."""
        self._watch.close()

    def read(self) -> None:
        """Read what changed, and store the fact."""
        now = self._clock()
        if self._watch.changed() or self.latest is None or now - self._read_at >= REREAD_S:
            try:
                self.latest = read_local_storage(self._roots)
            except KernelFileError as error:
                self.latest = None  # read again in the next round
                self._registries.count("collect_node_local_storage_info_status", "failed")
                self._conditions.down(NAME, str(error), "sysfs")
                return
            self._read_at = now
        self._registries.count("collect_node_local_storage_info_status", "succeeded")
        self._cache.facts.set(FACT_STORAGE, self.latest, now)
        self._conditions.up(NAME, "sysfs")
