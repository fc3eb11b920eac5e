"""Keeps the fact `node_local_storage_info` true: disks, partitions, volume groups, mounts (spec 02 §5.9).

Looks every second (a poll and one short file) but reads sysfs only when a device or a mount came or went, and once a
minute for what these do not show (a renamed volume).
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.app.clock import boot_clock
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.prometheus import Registries
from koordlet.system.devices.storage import LocalStorage, StorageWatch, read_local_storage
from koordlet.system.errors import KernelFileError
from koordlet.system.roots import Roots

NAME = "node_storage_info"
FACT_STORAGE = "node_local_storage_info"
REREAD_SECONDS = 60.0


class StorageInfoCollector:
    """`read` is one round. A round that fails leaves the last fact behind, which its stamp tells."""

    def __init__(
        self,
        roots: Roots,
        cache: MetricCache,
        registries: Registries,
        conditions: Conditions,
        *,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._roots, self._cache, self._registries, self._conditions = roots, cache, registries, conditions
        self._clock = clock
        self._watch = StorageWatch(roots)
        self._read_at = float("-inf")
        self.latest: LocalStorage | None = None

    def close(self) -> None:
        """Give back the descriptor."""
        self._watch.close()

    def read(self) -> None:
        """Look, read what is new, store."""
        now = self._clock()
        if self._watch.changed() or self.latest is None or now - self._read_at >= REREAD_SECONDS:
            try:
                self.latest = read_local_storage(self._roots)
            except KernelFileError as error:
                self.latest = None  # and tries again next time
                self._registries.count("collect_node_local_storage_info_status", "failed")
                self._conditions.down(NAME, str(error), "sysfs")
                return
            self._read_at = now
        self._registries.count("collect_node_local_storage_info_status", "succeeded")
        self._cache.facts.set(FACT_STORAGE, self.latest, now)
        self._conditions.up(NAME, "sysfs")
