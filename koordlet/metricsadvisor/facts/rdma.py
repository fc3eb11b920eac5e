"""Keeps the fact of the node's RDMA NICs (spec 02 §6.2, 08 §3.4; gate RDMADevices).

The state of ports is read in every round. The list of NICs and their positions are read again when the kernel's list of
RDMA devices or a number of virtual functions changed, and once a minute for changes that these do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_RDMA, RdmaInfo
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.system.devices import rdmanics
from koordlet.system.devices.rdmanics import RdmaNic
from koordlet.system.errors import KernelFileError
from koordlet.system.roots import Roots

log = get_logger(__name__)

NAME = "rdma"
INTERVAL_S = 5.0
REREAD_S = 60.0


class RdmaCollector:
    """`read` is one round. A round that fails leaves the last fact in the cache, with its old time stamp."""

    def __init__(
        self,
        roots: Roots,
        cache: MetricCache,
        conditions: CollectorConditions,
        *,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._roots = roots
        self._cache = cache
        self._conditions = conditions
        self._clock = clock
        self._names: tuple[str, ...] | None = None
        self._read_at = float("-inf")
        self._nics: tuple[RdmaNic, ...] = ()
        self._vfs: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Address -> (number of enabled virtual functions, their addresses)."""

    def read(self) -> None:
        """Read what changed, and store the fact."""
        now = self._clock()
        try:
            names = rdmanics.device_names(self._roots)
        except KernelFileError as error:
            self._conditions.down(NAME, str(error), "sysfs")
            return
        if names != self._names or now - self._read_at >= REREAD_S:
            self._nics = tuple(_numbered(rdmanics.nics(self._roots, names)))
            self._vfs = {}
            self._names = names
            self._read_at = now
        self._cache.facts.set(FACT_RDMA, tuple(self._info(nic) for nic in self._nics), now)
        if self._nics:
            self._conditions.up(NAME, "sysfs")
        else:
            self._conditions.waiting(NAME, "this machine has no RDMA NIC", "sysfs")

    def _info(self, nic: RdmaNic) -> RdmaInfo:
        assert nic.number is not None  # _numbered drops the others
        address = nic.place.bus_id
        enabled = rdmanics.enabled_vfs(self._roots, address)
        known = self._vfs.get(address)
        if known is None or known[0] != enabled or len(known[1]) != enabled:
            functions = rdmanics.virtual_functions(self._roots, address) if enabled else ()
            known = self._vfs[address] = (enabled, functions)
        return RdmaInfo(nic.place, nic.number, rdmanics.is_active(self._roots, nic.device), enabled > 0, known[1])


def _numbered(nics: Iterable[RdmaNic]) -> Iterable[RdmaNic]:
    """The NICs with a number of their own: NICs are allocated by number."""
    taken: dict[int, RdmaNic] = {}
    for nic in nics:
        if nic.number is None:
            _log_skipped(nic, "its name has no number")
        elif nic.number in taken:
            _log_skipped(nic, f"{taken[nic.number].device} has the same number")
        else:
            taken[nic.number] = nic
            yield nic


def _log_skipped(nic: RdmaNic, reason: str) -> None:
    key = f"rdma:{nic.device}:{reason}"
    log.once(key, "An RDMA NIC is not reported", device=nic.device, address=nic.place.bus_id, reason=reason)
