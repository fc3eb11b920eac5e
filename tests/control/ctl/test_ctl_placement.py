"""The scheduler's part of `koordctl explain pod`."""

from __future__ import annotations

import io

import pytest
from aiohttp import web
from rich.console import Console

from control.ctl.errors import CtlError
from control.ctl.pagecommands import print_placement
from control.ctl.views.placement import fetch_placement
from koordlet.api.encoding.wire import encode
from koordlet.api.pages.placement import ConsideredReservation, PodPlacement, RejectedNodes, ScoredNode
from koordlet.app.http import HttpServer


def printed(placement: PodPlacement) -> str:
    out = io.StringIO()
    print_placement(placement, Console(file=out, width=120, color_system=None))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_a_pending_pod() -> None:
    refused = RejectedNodes(
        plugin="NodeResourcesFit", reason="Insufficient cpu", preemption_might_help=True, count=2, nodes=["a", "b"]
    )
    placement = PodPlacement(
        pod="default/big",
        state="unschedulable",
        attempts=3,
        rejected_by=["NodeResourcesFit"],
        message="0/2 nodes are available: 2 Insufficient cpu.",
        nodes=2,
        refused=[refused],
    )
    assert printed(placement).splitlines() == [
        "default/big is unschedulable until something changes (3 attempts)",
        "  0/2 nodes are available: 2 Insufficient cpu.",
        "  Retried after a change for NodeResourcesFit, or after 5 minutes.",
        "",
        "Nodes that do not fit, by plugin:",
        "NODES  PLUGIN            REASON            PREEMPTION  EXAMPLES",
        "    2  NodeResourcesFit  Insufficient cpu  might help  a, b",
    ]


def test_a_placed_pod() -> None:
    scored = [
        ScoredNode(node="b", total=150, scores={"Fit": 100, "Spread": 50, "Idle": 0}),
        ScoredNode(node="a", total=90, scores={"Fit": 90, "Spread": 0, "Idle": 0}),
    ]
    placement = PodPlacement(pod="default/web", state="placed", node="a", nodes=3, feasible=2, scored=scored)
    assert printed(placement).splitlines() == [
        "default/web runs on a",
        "",
        "Of 3 nodes 2 fit, if it were placed now; weighted scores by plugin:",
        "   NODE  TOTAL  Fit  Spread",
        "   b       150  100      50",
        "→  a        90   90       0",
    ]


def test_reservations() -> None:
    considered = [
        ConsideredReservation(name="wide", node="b", policy="Default", left="cpu:8", result="fits"),
        ConsideredReservation(name="old", node="a", policy="Restricted", left="cpu:1", result="is unschedulable"),
    ]
    placement = PodPlacement(pod="default/web", state="active", reservations=considered)
    assert printed(placement).splitlines() == [
        "default/web is in the scheduling queue",
        "",
        "Reservations whose owners match:",
        "RESERVATION  NODE  POLICY      LEFT   RESULT",
        "wide         b     Default     cpu:8  fits",
        "old          a     Restricted  cpu:1  is unschedulable",
    ]


async def test_the_placement_is_fetched_from_the_scheduler() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.match_info["pod"] == "web":
            return web.Response(body=encode(PodPlacement(pod="default/web", state="active")))
        return web.json_response({"message": "no pod"}, status=404 if request.match_info["pod"] == "none" else 503)

    server = HttpServer("127.0.0.1:0", routes=[web.get("/apis/v1/explain/{namespace}/{pod}", answer)])
    await server.start()
    try:
        url = f"http://127.0.0.1:{server.port}"
        placement = await fetch_placement(url, "default", "web")
        assert placement is not None
        assert placement.state == "active"
        assert await fetch_placement(url, "default", "none") is None
        with pytest.raises(CtlError, match="HTTP 503"):
            await fetch_placement(url, "default", "standby")
    finally:
        await server.stop()
    with pytest.raises(CtlError, match="does not respond"):
        await fetch_placement(url, "default", "web")
