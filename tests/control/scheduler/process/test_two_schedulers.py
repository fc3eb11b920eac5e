"""Two schedulers that both schedule, as after a split of the network: figures stay those of the objects, nothing leaks.

They may exceed a quota together, because each knows the other's pods only by its watch."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from koordlet.api.core import Pod
from koordlet.api.crs.reservation import Reservation
from tests.control.scheduler.process.lives import Life, begin
from tests.control.scheduler.process.test_quota_and_reservation_scenarios import (
    QUOTA,
    allocated,
    quota,
    reserve,
    reserved,
)
from tests.waiting import until

PODS = 12


async def agree(world: Any, lives: list[Life]) -> bool:
    """Whether the pages of both state what the API server has: used is the sum of the pods on nodes, and a reservation
    has exactly the owners that name it."""
    bound = [pod for pod in await world.admin.list(Pod, "default") if pod.spec.node_name]
    owners = {pod.metadata.name for pod in bound if await allocated(world, pod.metadata.name)}
    status = (await world.admin.get(Reservation, "web")).status
    if {owner.name for owner in status.current_owners} != owners:
        return False
    for life in lives:
        team = await life.page("plugins/ElasticQuota/quotas/team")
        rooms = await life.page("plugins/Reservation/nodeReservations/n1")
        if team is None or rooms is None:
            return False
        used = int(team["used"].get("cpu", "0"))
        pods = {pod["Name"] for pod in rooms["items"][0].get("assignedPods", {}).values()}
        if used != len(bound) or pods != owners:
            return False
    return True


async def test_both_count_what_the_other_binds_and_nothing_leaks(world: Any) -> None:
    await world.node("n1", cpu="32")
    await quota(world, "team", "4", "10")
    await reserve(world, "web", "4", allocateOnce=False, allocatePolicy="Restricted")
    lives = [await begin(world.tmp, world.server.kubeconfig_path) for _ in range(2)]
    try:
        await until(lambda: reserved(world, "web", "Available"))
        for number in range(PODS):
            await world.pod(f"p{number}", labels={QUOTA: "team", "app": "web"})

        async def several() -> bool:
            return sum(map(bool, (await world.placed()).values())) >= 10

        await until(several)
        await until(lambda: agree(world, lives))
        bindings = Counter(
            line["objectRef"]["name"]
            for line in map(json.loads, world.audit.read_text().splitlines())
            if line["objectRef"].get("subresource") == "binding" and line["responseStatus"]["code"] == 201
        )
        assert set(bindings.values()) == {1}, "no pod is bound twice"
        await lives.pop().kill()
        for name in await world.placed():
            await world.delete_pod(name)
        await until(lambda: agree(world, lives))
        page = await lives[0].page("plugins/ElasticQuota/quotas/team")
        assert not any(map(int, page["used"].values())), "nothing is left of pods that either of them bound"
    finally:
        for life in lives:
            assert await life.end() == 0
