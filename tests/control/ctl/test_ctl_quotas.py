"""`koordctl quota` draws the tree of quotas with their figures."""

from __future__ import annotations

from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from control.ctl.errors import CtlError
from control.ctl.views.quotas import fetch_quotas, lines, quota_table
from control.quota.amounts import MAX_AMOUNT, quantity
from koordlet.api.pages.quotas import QuotaPage
from tests.control.scheduler.build import pod
from tests.control.scheduler.plugins.quotaworld import QuotaWorld, quota_object


def drawn(quotas: dict[str, QuotaPage]) -> list[str]:
    console = Console(file=StringIO(), width=200)
    console.print(quota_table(quotas))
    assert isinstance(console.file, StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


async def served(world: QuotaWorld) -> TestServer:
    async def quotas(request: web.Request) -> web.Response:
        return web.json_response(world.plugin.quotas_page())

    app = web.Application()
    app.router.add_get("/apis/v1/plugins/ElasticQuota/quotas", quotas)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_the_tree_and_its_figures() -> None:
    world = QuotaWorld(quota_object("team", min="4"), quota_object("a", "team", min="2"), quota_object("other"))
    world.add(pod(cpu="3", memory=None, on="n0", labels={"quota.scheduling.koordinator.sh/name": "a"}))
    server = await served(world)
    try:
        everything = await fetch_quotas(str(server.make_url("")))
        part = await fetch_quotas(str(server.make_url("")), "team")
        with pytest.raises(CtlError, match="there is no ElasticQuota missing"):
            await fetch_quotas(str(server.make_url("")), "missing")
    finally:
        await server.close()
    assert drawn(everything) == [
        "QUOTA RESOURCE MIN MAX REQUEST USED RUNTIME GUARANTEED",
        "other cpu 0 100 0 - 0 0",
        "team cpu 4 100 3 3 3 4",
        "a cpu 2 100 3 3 3 3",
    ]
    assert [(depth, quota.name) for depth, quota in lines(part)] == [(0, "team"), (1, "a")]


def test_the_largest_amount_is_unlimited() -> None:
    """The scheduler's built-in quotas have it as their maximum."""
    largest = {"cpu": quantity("cpu", MAX_AMOUNT), "memory": quantity("memory", MAX_AMOUNT)}
    page = QuotaPage(name="default", max={name: str(amount) for name, amount in largest.items()})
    assert [line.split()[-5] for line in drawn({"default": page})[1:]] == ["unlimited"] * 2


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ({"a": "b", "b": "a"}, [(0, "a"), (1, "b")]),
        ({"a": "gone", "b": "a"}, [(0, "a"), (1, "b")]),
        ({"a": "a"}, [(0, "a")]),
    ],
    ids=["cycle", "missing", "itself"],
)
def test_quotas_outside_the_tree_are_drawn_once(parents: dict[str, str], expected: list[Any]) -> None:
    quotas = {name: QuotaPage(name=name, parent_name=parent) for name, parent in parents.items()}
    assert [(depth, quota.name) for depth, quota in lines(quotas)] == expected


def test_a_long_chain_is_drawn() -> None:
    length = 3000
    names = ["koordinator-root-quota", *(f"q{at:04}" for at in range(length))]
    quotas = {name: QuotaPage(name=name, parent_name=parent) for parent, name in pairwise(names)}
    assert [(depth, quota.name) for depth, quota in lines(quotas)] == list(enumerate(names[1:]))
