"""Schedulers in processes of their own, one after the other, that can be killed at a moment that was seen.

Also what their pages tell, held to what the API server has.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from control.scheduler.config.shipped import configuration
from koordlet.api.core import Pod
from koordlet.app.http import HttpServer
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[4]


@dataclass
class Life:
    """One process. `page` returns None while no server listens, or while the process does not lead."""

    process: asyncio.subprocess.Process
    port: int

    async def page(self, path: str) -> Any:
        assert self.process.returncode is None, "the scheduler ended by itself"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}/apis/v1/{path}") as answer,
            ):
                return await answer.json() if answer.status == 200 else None
        except aiohttp.ClientError:
            return None

    async def waiting(self, gang: str) -> list[str]:
        """Names of the gang's members that wait at Permit."""
        page = await self.page(f"plugins/Coscheduling/gang/default/{gang}")
        return sorted(key.partition("/")[2] for key in page["waitingForBindChildren"]) if page else []

    async def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


async def begin(tmp: Path, kubeconfig: Path, extender: str = "", *flags: str) -> Life:
    """A scheduler with the shipped profile, with an extender at that address, and with further flags."""
    document: dict[str, Any] = configuration()
    if extender:
        extender_config = {"urlPrefix": extender, "filterVerb": "pick", "nodeCacheCapable": True, "httpTimeout": "120s"}
        document["extenders"] = [extender_config]
    path = tmp / "life.yaml"
    path.write_text(yaml.safe_dump(document))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.scheduler", f"--config={path}", f"--kubeconfig={kubeconfig}",
        f"--port={port}", "--address=127.0.0.1", "--secure-port=0", "--leader-elect=false",
        "--kube-api-qps=500", "--kube-api-burst=500", *flags,
        cwd=ROOT, env={**os.environ, "HOME": "/nonexistent"},
    )  # fmt: skip
    return Life(process, port)


async def survive_kills(
    world: Any,
    held: Callable[[], Awaitable[Mapping[str, Sized]]],
    known: Callable[[Life], Awaitable[bool]],
    kills: Sequence[int],
    total: int,
    rejection: str,
) -> None:
    """Schedulers that are killed when `kills` pods are bound; the next one binds the rest, `total` in all.

    `held`: node -> what its bound pods hold. `known`: whether the scheduler's pages say the same. One pod finds no
    room, for a reason that matches `rejection`, until another pod is deleted.
    """

    async def bound(least: int) -> bool:
        return sum(map(len, (await held()).values())) >= least

    for least in kills:
        life = await begin(world.tmp, world.server.kubeconfig_path)
        try:
            await until(partial(bound, least))
        finally:
            await life.kill()
    life = await begin(world.tmp, world.server.kubeconfig_path)
    try:
        await until(lambda: bound(total))
        await until(lambda: known(life))
        waiting = next(name for name, node in (await world.placed()).items() if not node)
        await until(lambda: world.condition(waiting))
        assert re.search(rejection, await world.condition(waiting))
        await world.delete_pod(next(name for name, node in (await world.placed()).items() if node == "n1"))
        await until(lambda: bound(total))
        await until(lambda: known(life))
    finally:
        assert await life.end() == 0


@dataclass
class Picky:
    """An extender that accepts every node, and answers for a limited number of pods: `let` of those named `prefix`…"""

    prefix: str
    let: int
    requested: list[str] = field(default_factory=list)
    """Pods of all requests, answered or not."""
    held: set[str] = field(default_factory=set)
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Picky:
        self._server = HttpServer("127.0.0.1:0", routes=[web.post("/pick", self._pick)])
        await self._server.start()
        self.url = self._server.url
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        await self._server.stop()

    async def _pick(self, request: web.Request) -> web.Response:
        args = await request.json()
        name = args["Pod"]["metadata"]["name"]
        if name.startswith(self.prefix):
            self.requested.append(name)
            if len(self.requested) > self.let:
                self.held.add(name)
                await self._open.wait()
        return web.json_response({"NodeNames": args["NodeNames"]})


async def agrees(world: Any, life: Life, nodes: dict[str, int]) -> bool:
    """Whether nothing counts on the nodes but what the API server has there, in names and in milli-cores."""
    expected: dict[str, dict[str, int]] = defaultdict(dict)
    for pod in await world.admin.list(Pod, "default"):
        cpu = sum(c.resources.requests["cpu"].milli_value() for c in pod.spec.containers)
        expected[pod.spec.node_name][pod.metadata.name] = cpu
    for name, cores in nodes.items():
        page = await life.page(f"nodes/{name}")
        if page is None:
            return False
        amounts = sum(expected[name].values())
        assert amounts <= 1000 * cores, f"{name} is overcommitted"
        if {pod["metadata"]["name"] for pod in page["pods"]} != expected[name].keys():
            return False
        if (page["requested"]["MilliCPU"], page["requested"]["AllowedPodNumber"]) != (amounts, len(expected[name])):
            return False
    return True


def bindings(world: Any) -> Counter[str]:
    """Pod -> how often the API server accepted a binding of it."""
    lines = map(json.loads, world.audit.read_text().splitlines()) if world.audit.exists() else ()
    return Counter(
        line["objectRef"]["name"]
        for line in lines
        if line["objectRef"].get("subresource") == "binding" and line["responseStatus"]["code"] == 201
    )
