"""The newest known version of every DrainNode.

The informer is behind the controller's own writes, so each written DrainNode is stored here, too.
"""

from __future__ import annotations

from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import DrainNode, DrainNodeStatus
from koordlet.kube import Client, merge_diff


class DrainBook:
    """See the module text."""

    def __init__(self) -> None:
        self._drains: dict[str, DrainNode] = {}

    def put(self, drain: DrainNode) -> None:
        """A version from the informer or from the answer to a write; older versions are ignored."""
        known = self._drains.get(drain.metadata.uid)
        if known is None or _version(drain) >= _version(known):
            self._drains[drain.metadata.uid] = drain

    def remove(self, drain: DrainNode) -> None:
        """The DrainNode was deleted."""
        self._drains.pop(drain.metadata.uid, None)

    def get(self, uid: str) -> DrainNode | None:
        return self._drains.get(uid)

    def all(self) -> list[DrainNode]:
        """Every drain, oldest first."""
        return sorted(self._drains.values(), key=_age_order)

    def earlier(self, drain: DrainNode) -> DrainNode | None:
        """An earlier drain of the same node that has not ended."""
        for other in self.all():
            if other.metadata.uid == drain.metadata.uid:
                return None
            if other.spec.node_name == drain.spec.node_name and other.status.phase not in (d.COMPLETE, d.ABORTED):
                return other
        return None

    async def write(self, client: Client, drain: DrainNode, status: DrainNodeStatus) -> bool:
        """Write the difference of the status, if there is one. Raises KubeError."""
        body = merge_diff(drain.status, status)
        if not body:
            return False
        meta = drain.metadata
        self.put(await client.update_status(DrainNode, meta.name, status=body, resource_version=meta.resource_version))
        return True


def _age_order(drain: DrainNode) -> tuple[float, str]:
    created = drain.metadata.creation_timestamp
    return (created.unix if created is not None else 0.0), drain.metadata.name


def _version(drain: DrainNode) -> int:
    """Resource versions of one kind are comparable as integers; anything else counts as old."""
    text = drain.metadata.resource_version
    return int(text) if text.isdecimal() else 0
