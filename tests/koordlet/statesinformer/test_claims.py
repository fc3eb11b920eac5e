"""Volumes of claims are queried when they are looked up, until they are bound."""

from __future__ import annotations

from koordlet.api.core import PersistentVolumeClaim
from koordlet.api.encoding.wire import convert
from koordlet.kube.errors import NotFound
from koordlet.statesinformer.pods.claims import EXPIRE_AFTER_S, ClaimVolumes


class Server:
    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.asked: list[str] = []

    async def get(self, namespace: str, name: str) -> PersistentVolumeClaim:
        self.asked.append(f"{namespace}/{name}")
        if name not in self.bound:
            raise NotFound(404, "NotFound", "no such claim")
        return convert({"metadata": {"name": name}, "spec": {"volumeName": self.bound[name]}}, PersistentVolumeClaim)


async def test_a_claim_is_fetched_after_a_lookup_until_it_is_bound() -> None:
    server, now = Server(), [0.0]
    claims = ClaimVolumes(server.get, clock=lambda: now[0])
    await claims.refresh()
    assert server.asked == []
    assert claims.volume("ns", "data") is None
    await claims.refresh()
    server.bound["data"] = ""
    await claims.refresh()
    assert claims.volume("ns", "data") is None
    server.bound["data"] = "pv-1"
    await claims.refresh()
    await claims.refresh()
    assert claims.volume("ns", "data") == "pv-1"
    assert len(server.asked) == 3
    now[0] = EXPIRE_AFTER_S + 1
    await claims.refresh()
    assert claims.volume("ns", "data") is None, "dropped when it is not looked up any more"
