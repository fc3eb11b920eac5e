"""`koordctl node` draws the CPUs of a node and who holds them."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from control.ctl.views.cpumap import cpu_page, fetch_cpus
from koordlet.api.encoding.wire import convert
from koordlet.api.pages.nodecpus import NodeCPUPage
from tests.control.scheduler.plugins.numaworld import NumaWorld, lsr, world


def drawn(world: NumaWorld) -> list[str]:
    return [line.plain for line in cpu_page(convert(world.page("n0"), NodeCPUPage))]


def test_cores_and_who_holds_them() -> None:
    scene = world((2, 1, 4, 2), memory="32Gi", reserved="0-1")
    scene.run(lsr("2", name="a", spec={"preferredCPUExclusivePolicy": "PCPULevel"}))
    scene.run(lsr("4", name="b", memory="8Gi", numa={"numaTopologyPolicy": "SingleNUMANode"}))
    scene.run(lsr("2", name="c", spec={"requiredCPUBindPolicy": "SpreadByPCPUs"}))
    assert drawn(scene) == [
        "",
        "CPUs: 16, 6 free, 2 reserved",
        "  NUMA node 0, socket 0: cpu 2 of 6 left, memory 24Gi of 32Gi left",
        "    ## AA AA ..",
        "  NUMA node 1, socket 1: cpu 4 of 8 left, memory 32Gi of 32Gi left",
        "    BB C. C. ..",
        "  A  default/b: 2-5",
        "  B  default/a: 8-9, PCPULevel",
        "  C  default/c: 10,12",
        "  .  free, the pool of pods without CPUs of their own: 6-7,11,13-15",
        "  #  reserved: 0-1",
    ]


def test_policies_are_named() -> None:
    labels = {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}
    assert drawn(world((1, 1, 2, 2), labels=labels, policy="Restricted"))[1] == (
        "CPUs (FullPCPUsOnly, Restricted): 4, 4 free, 0 reserved"
    )


def test_more_pods_than_letters() -> None:
    scene = world((1, 1, 64, 1))
    for _ in range(54):
        scene.run(lsr("1", memory="1Mi"))
    lines = drawn(scene)
    assert [line[:6] for line in lines[3:7]] == ["    A ", "    Q ", "    g ", "    w "]
    assert "  *  2 more pods: 52-53" in lines


async def test_a_scheduler_that_does_not_answer_is_named() -> None:
    async def unknown(request: web.Request) -> web.Response:
        return web.json_response({"message": "cannot find node n1"}, status=500)

    async def known(request: web.Request) -> web.Response:
        return web.json_response(page)

    page: dict[str, Any] = world().page("n0")
    app = web.Application()
    app.router.add_get("/apis/v1/plugins/NodeNUMAResource/nodes/n1", unknown)
    app.router.add_get("/apis/v1/plugins/NodeNUMAResource/nodes/n0", known)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url(""))
    try:
        assert "cannot find node n1" in str(await fetch_cpus(url, "n1"))
        assert await fetch_cpus(url, "n2") == "the scheduler has no plugin NodeNUMAResource"
        assert isinstance(await fetch_cpus(url, "n0"), NodeCPUPage)
    finally:
        await server.close()
    assert "does not respond" in str(await fetch_cpus("http://127.0.0.1:9", "n0"))
