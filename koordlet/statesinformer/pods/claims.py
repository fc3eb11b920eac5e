"""The volumes that PersistentVolumeClaims are bound to, for pods whose settings name a volume.

Only claims that were looked up are fetched, one GET each: a node needs a few of a cluster's thousands. A bound claim is
kept as long as it is looked up; an unbound claim is fetched again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from koordlet.api.core import PersistentVolumeClaim
from koordlet.app.logging import get_logger
from koordlet.kube.errors import KubeError, NotFound

log = get_logger(__name__)

MAX_REQUESTS_PER_REFRESH = 20
EXPIRE_AFTER_S = 600.0
"""A claim that was not looked up for this long is dropped."""
GetClaim = Callable[[str, str], Awaitable[PersistentVolumeClaim]]
"""(namespace, name) -> the claim; raises KubeError."""


class ClaimVolumes:
    """`volume` reads the cache; `refresh` fetches the claims that `volume` could not answer."""

    def __init__(self, get: GetClaim, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._get = get
        self._clock = clock
        self._volumes: dict[tuple[str, str], str] = {}
        self._looked_up_at: dict[tuple[str, str], float] = {}

    def volume(self, namespace: str, name: str) -> str | None:
        """Name of the volume; None while unknown."""
        self._looked_up_at[namespace, name] = self._clock()
        return self._volumes.get((namespace, name)) or None

    async def refresh(self) -> None:
        """Fetch up to `MAX_REQUESTS_PER_REFRESH` claims; stops at the first error other than 404."""
        now = self._clock()
        for key in [key for key, at in self._looked_up_at.items() if now - at > EXPIRE_AFTER_S]:
            del self._looked_up_at[key]
            self._volumes.pop(key, None)
        unbound = [key for key in self._looked_up_at if not self._volumes.get(key)]
        for namespace, name in unbound[:MAX_REQUESTS_PER_REFRESH]:
            try:
                claim = await self._get(namespace, name)
            except NotFound:
                continue
            except KubeError as error:
                log.once(
                    f"claim:{error}",
                    "Cannot read a PersistentVolumeClaim",
                    claim=f"{namespace}/{name}",
                    error=str(error),
                )
                return
            self._volumes[namespace, name] = claim.spec.volume_name
