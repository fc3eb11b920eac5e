"""Keeps the fact `node_local_storage_info` true: disks, partitions, volume groups, mounts (spec 02 §5.9).

Looks every second but reads sysfs only when a device or a mount came or went, and once a minute for what these do not
show (a renamed volume).
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.metriccache import MetricCache
from koordlet.metrics import Registries
from koordlet.metricsadvisor.advisor import boot_clock
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.system.errors import KernelFileError
from koordlet.system.roots import Roots
from koordlet.system.storage import LocalStorage, read_local_storage, storage_fingerprint

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
        self._fingerprint: tuple[str | None, ...] = ()
        self._read_at = float("-inf")
        self.latest: LocalStorage | None = None

    def read(self) -> None:
        """Look, read what is new, store."""
        now = self._clock()
        fingerprint = storage_fingerprint(self._roots)
        if self.latest is None or fingerprint != self._fingerprint or now - self._read_at >= REREAD_SECONDS:
            try:
                self.latest = read_local_storage(self._roots)
            except KernelFileError as error:
                self._registries.count("collect_node_local_storage_info_status", "failed")
                self._conditions.down(NAME, str(error), "sysfs")
                return
            self._fingerprint, self._read_at = fingerprint, now
        self._registries.count("collect_node_local_storage_info_status", "succeeded")
        self._cache.facts.set(FACT_STORAGE, self.latest, now)
        self._conditions.up(NAME, "sysfs")
