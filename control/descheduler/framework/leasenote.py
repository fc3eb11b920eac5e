"""Values that outlive the process, as JSON in an annotation of the descheduler's lease.

The next leader reads what the last one wrote. Only the account of the descheduler may write the lease. PodMigrationJobs
are no such place: they are deleted minutes after their end, users write them too, and other evictors create none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import GenericAlias
from typing import Final, Generic, TypeVar

import msgspec

from koordlet.api.core import Lease
from koordlet.app.logging import get_logger
from koordlet.kube import Client, NotFound

log = get_logger(__name__)
V = TypeVar("V")

MAX_ENTRIES: Final = 500
"""Callers write at most this many."""
MAX_TEXT_CHARS: Final = 150_000
"""500 entries with names of nodes need at most 140 KB. All annotations of an object may have 256 KiB."""


class LeaseNote(Generic[V]):
    """See the module text. The methods raise KubeError."""

    def __init__(self, client: Client, namespace: str, name: str, annotation: str, value: type[V]) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._annotation = annotation
        self._decoder = msgspec.json.Decoder(GenericAlias(dict, (str, value)))

    async def read(self) -> dict[str, V]:
        """The values by key; none if there are none or they are malformed."""
        try:
            lease = await self._client.get(Lease, self._name, self._namespace)
        except NotFound:
            return {}
        return self._parsed(lease.metadata.annotations.get(self._annotation, "{}"))

    async def write(self, values: Mapping[str, V]) -> None:
        """Replace the values. The lease exists while this process leads."""
        body = {"metadata": {"annotations": {self._annotation: msgspec.json.encode(values).decode()}}}
        await self._client.patch(Lease, self._name, self._namespace, body=body)

    def _parsed(self, text: str) -> dict[str, V]:
        problem = f"{len(text)} characters"
        try:
            if len(text) <= MAX_TEXT_CHARS:
                values: dict[str, V] = self._decoder.decode(text)
                return values
        except msgspec.DecodeError as error:
            problem = str(error)
        log.warning("A malformed annotation of the lease is ignored", annotation=self._annotation, err=problem)
        return {}
