"""Which volume a claim is bound to, for the few pods that ask for something by a volume's name.

Asked of the API server one by one and only for claims that somebody looked up: a node needs a handful of a cluster's
thousands. An answer stands as long as it is looked up; a claim that is not bound yet is asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from koordlet.api.core import PersistentVolumeClaim
from koordlet.app.logging import get_logger
from koordlet.kube.errors import KubeError, NotFound

log = get_logger(__name__)

AT_ONCE = 20
"""Requests a round."""
FORGET_SECONDS = 600.0
Get = Callable[[str, str], Awaitable[PersistentVolumeClaim]]
"""(namespace, name) -> the claim; raises KubeError."""


class Claims:
    """`volume` answers from memory, `refresh` asks for what it could not answer."""

    def __init__(self, get: Get, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._get, self._clock = get, clock
        self._volumes: dict[tuple[str, str], str] = {}
        self._asked: dict[tuple[str, str], float] = {}
        """Claim -> when it was last looked up."""

    def volume(self, namespace: str, name: str) -> str | None:
        """Name of the volume; None while unknown."""
        self._asked[namespace, name] = self._clock()
        return self._volumes.get((namespace, name)) or None

    async def refresh(self) -> None:
        """One round."""
        now = self._clock()
        for key in [key for key, at in self._asked.items() if now - at > FORGET_SECONDS]:
            del self._asked[key]
            self._volumes.pop(key, None)
        for namespace, name in [key for key in self._asked if not self._volumes.get(key)][:AT_ONCE]:
            try:
                claim = await self._get(namespace, name)
            except NotFound:
                continue
            except KubeError as error:
                log.once(f"claim:{error}", "a claim's volume is not known", claim=f"{namespace}/{name}",
                         error=str(error))  # fmt: skip
                return
            self._volumes[namespace, name] = claim.spec.volume_name
