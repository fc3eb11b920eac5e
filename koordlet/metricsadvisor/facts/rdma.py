"""Keeps the fact of the node's RDMA NICs (spec 02 §6.2, 08 §3.4; gate RDMADevices).

Ports are read at every round. Which NICs there are, and where, is looked up when the kernel's list of RDMA devices or a
number of virtual functions differs, and once a minute for what these do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_RDMA, RdmaInfo
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.system.devices import rdmanics
from koordlet.system.devices.rdmanics import RdmaNic
from koordlet.system.errors import KernelFileError
from koordlet.system.roots import Roots

log = get_logger(__name__)

NAME = "rdma"
SECONDS = 5.0
"""Between two rounds."""
REREAD_SECONDS = 60.0


class RdmaCollector:
    """`read` is one round. A round that fails leaves the last fact behind, which its stamp tells."""

    def __init__(
        self, roots: Roots, cache: MetricCache, conditions: Conditions, *, clock: Callable[[], float] = boot_clock
    ) -> None:
        self._roots, self._cache, self._conditions, self._clock = roots, cache, conditions, clock
        self._names: tuple[str, ...] | None = None
        self._read_at = float("-inf")
        self._nics: tuple[RdmaNic, ...] = ()
        self._vfs: dict[str, tuple[int, tuple[str, ...]]] = {}
        """address -> how many are enabled, and which"""

    def read(self) -> None:
        """Look, read what is new, store."""
        now = self._clock()
        try:
            names = rdmanics.device_names(self._roots)
        except KernelFileError as error:
            self._conditions.down(NAME, str(error), "sysfs")
            return
        if names != self._names or now - self._read_at >= REREAD_SECONDS:
            self._nics, self._vfs = tuple(_numbered(rdmanics.nics(self._roots, names))), {}
            self._names, self._read_at = names, now
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
            known = self._vfs[address] = (
                enabled, rdmanics.virtual_functions(self._roots, address) if enabled else (),
            )  # fmt: skip
        return RdmaInfo(nic.place, nic.number, rdmanics.is_active(self._roots, nic.device), enabled > 0, known[1])


def _numbered(nics: Iterable[RdmaNic]) -> Iterable[RdmaNic]:
    """Those whose number is one, and theirs alone: who allocates NICs tells them apart by it."""
    taken: dict[int, RdmaNic] = {}
    for nic in nics:
        if nic.number is None:
            _pass_over(nic, "its name has no number")
        elif nic.number in taken:
            _pass_over(nic, f"{taken[nic.number].device} has the same number")
        else:
            taken[nic.number] = nic
            yield nic


def _pass_over(nic: RdmaNic, reason: str) -> None:
    log.once(
        f"rdma:{nic.device}:{reason}", "an RDMA NIC is not reported",
        device=nic.device, address=nic.place.bus_id, reason=reason,
    )  # fmt: skip
