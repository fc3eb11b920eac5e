"""`koordctl node` shows the devices of a node and who holds them."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestServer

from control.ctl.views.cpumap import LETTERS
from control.ctl.views.devicemap import device_page, fetch_devices
from koordlet.api.encoding.wire import convert
from koordlet.api.pages.nodedevices import NodeDevicePage
from tests.control.scheduler.plugins.deviceworld import DeviceWorld, equipped, gpu, machine, rdma, with_devices


def drawn(world: DeviceWorld) -> list[str]:
    return [line.plain for line in device_page(convert(world.plugin.page("n0"), NodeDevicePage))]


def test_devices_by_switch_and_who_holds_them() -> None:
    world = equipped(machine())
    requests = {"nvidia.com/gpu": "3", "koordinator.sh/rdma": "10"}
    world.run(with_devices(requests, name="train", joint={"deviceTypes": ["gpu", "rdma"]}))
    world.run(with_devices({"koordinator.sh/gpu": "30"}, name="serve"))
    assert drawn(world) == [
        "",
        "Devices: gpu 8, 4 free; rdma 4, 2 free",
        "  NUMA node 0",
        "    PCIe 0: gpu 0 B, gpu 1 B, rdma 1 B 90% left",
        "    PCIe 1: gpu 2 B, gpu 3 A 70% left, rdma 2 B 90% left",
        "  NUMA node 1",
        "    PCIe 2: gpu 4 free, gpu 5 free, rdma 3 free",
        "    PCIe 3: gpu 6 free, gpu 7 free, rdma 4 free",
        "  A  default/serve: gpu 3",
        "  B  default/train: gpu 0-2, rdma 1-2",
    ]


def test_failed_and_unplaced_devices() -> None:
    world = equipped([gpu(0, health=False), gpu(1, topology=None), rdma(1, -1, "")])
    assert drawn(world) == [
        "",
        "Devices: gpu 2, 1 free; rdma 1, 1 free",
        "  unknown NUMA node",
        "    no switch: gpu 1 free, rdma 1 free",
        "  NUMA node 0",
        "    PCIe 0: gpu 0 failed",
    ]


def test_more_pods_than_letters() -> None:
    world = equipped([rdma(1)])
    for _ in range(len(LETTERS) + 2):
        world.run(with_devices({"koordinator.sh/rdma": "1"}, cpu="1m", memory="1Mi"))
    lines = drawn(world)
    assert "  *  2 more pods" in lines
    assert f"rdma 1 {LETTERS}* 46% left" in lines[3]


async def test_a_node_without_devices_shows_nothing() -> None:
    async def known(request: web.Request) -> web.Response:
        return web.json_response(equipped([gpu(0)]).plugin.page("n0"))

    app = web.Application()
    app.router.add_get("/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/n0", known)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url(""))
    try:
        assert isinstance(await fetch_devices(url, "n0"), NodeDevicePage)
        assert await fetch_devices(url, "n1") is None
    finally:
        await server.close()
    assert await fetch_devices("http://127.0.0.1:9", "n0") is None
    assert [*device_page(NodeDevicePage())] == []
