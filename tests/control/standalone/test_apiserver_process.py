"""The server as a process: flags, kill -9 and restart, SIGTERM."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CMS = "/api/v1/namespaces/default/configmaps"


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.standalone.apiserver", *arguments, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )


async def serve(folder: Path) -> tuple[asyncio.subprocess.Process, Any, str]:
    """A running server, a client session, and its address."""
    kubeconfig = folder / "admin.kubeconfig"
    kubeconfig.unlink(missing_ok=True)
    process = await start("--data-dir", str(folder), "--secure-port=0")
    async with asyncio.timeout(60):
        while not kubeconfig.exists():  # written by the other process when it is ready
            assert process.returncode is None
            await asyncio.sleep(0.02)
    config = yaml.safe_load(kubeconfig.read_text())
    context = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context))
    return process, session, config["clusters"][0]["cluster"]["server"]


async def test_kill_9_loses_no_acknowledged_write_and_watches_resume(tmp_path: Path) -> None:
    process, session, url = await serve(tmp_path / "d")
    answered: dict[str, str] = {}

    async def write(worker: int) -> None:
        number = 0
        while True:
            name = f"w{worker}-{number}"
            try:
                async with session.post(url + CMS, json={"metadata": {"name": name}}) as response:
                    body = await response.json()
            except (aiohttp.ClientError, json.JSONDecodeError):
                return  # killed
            assert response.status == 201, body
            answered[name] = body["metadata"]["resourceVersion"]
            number += 1

    async with session.get(url + CMS) as response:
        before = (await response.json())["metadata"]["resourceVersion"]
    writers = [asyncio.create_task(write(i)) for i in range(4)]
    async with asyncio.timeout(60):
        while len(answered) < 60:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    await asyncio.gather(*writers)
    await process.communicate()
    await session.close()

    process, session, url = await serve(tmp_path / "d")
    async with session.get(url + CMS) as response:
        listed = await response.json()
    stored = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in listed["items"]}
    assert answered.items() <= stored.items()
    replayed = set()
    watch = f"{url}{CMS}?watch=1&resourceVersion={before}&timeoutSeconds=60"
    async with session.get(watch) as response:
        async for line in response.content:
            event = json.loads(line)
            assert event["type"] in ("ADDED", "MODIFIED"), event
            replayed.add(event["object"]["metadata"]["name"])
            if set(answered) <= replayed:
                break
    assert set(answered) <= replayed
    await session.close()
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0


async def test_a_full_disk_fails_only_writes_until_there_is_space(tmp_path: Path) -> None:
    """A limit of the size of the server's files replaces the full disk: the same system calls fail."""
    process, session, url = await serve(tmp_path / "d")

    async def create(name: str) -> tuple[int, Any]:
        body = {"metadata": {"name": name}, "data": {"v": "x" * 20_000}}
        async with session.post(url + CMS, json=body) as response:
            return response.status, await response.json()

    async def statuses(*paths: str) -> list[int]:
        statuses_seen = []
        for path in paths:
            async with session.get(url + path) as response:
                statuses_seen.append(response.status)
        return statuses_seen

    assert (await create("before"))[0] == 201
    limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    size = (tmp_path / "d/state.db-wal").stat().st_size
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 8192, limits[1]))
    answers = [await create(f"full-{i}") for i in range(3)]
    assert [status for status, _ in answers] == [500] * 3
    assert {body["kind"] for _, body in answers} == {"Status"}
    assert "state.db: cannot" in answers[0][1]["message"]
    assert await statuses(f"{CMS}/before", f"{CMS}/full-0", "/readyz", "/healthz") == [200, 404, 500, 500]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
    status, created = await create("after")
    assert status == 201
    assert await statuses(f"{CMS}/before", f"{CMS}/full-0", "/readyz") == [200, 404, 200]
    await session.close()
    process.send_signal(signal.SIGKILL)
    await process.communicate()

    process, session, url = await serve(tmp_path / "d")
    async with session.get(url + CMS) as response:
        listed = await response.json()
    names = {o["metadata"]["name"] for o in listed["items"]}
    assert {"before", "after"} <= names
    assert not any(name.startswith("full-") for name in names)
    assert int(listed["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
    await session.close()
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 60)


async def test_a_damaged_database_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"this is no database " * 1000)
    process = await start("--data-dir", str(tmp_path), "--secure-port=0")
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    assert b"state.db: cannot open the database: file is not a database" in errors
    assert b"Traceback" not in errors


async def test_sigterm_merges_the_wal_and_releases_the_lock(tmp_path: Path) -> None:
    process, session, url = await serve(tmp_path / "d")
    async with session.get(f"{url}/readyz") as response:
        assert await response.text() == "ok"
    await session.close()
    second = await start("--data-dir", str(tmp_path / "d"), "--secure-port=0")
    _, errors = await asyncio.wait_for(second.communicate(), 60)
    assert second.returncode == 1
    assert b"another API server uses this data directory" in errors
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    wal = tmp_path / "d/state.db-wal"
    assert not wal.exists() or wal.stat().st_size == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], b"--data-dir is required"),
        (["--data-dirr=x"], b"did you mean --data-dir"),
        (["--data-dir=x", "--durability=none"], b"durability"),
    ],
)
async def test_invalid_command_lines_are_rejected(arguments: list[str], text: bytes) -> None:
    process = await start(*arguments)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert text in errors
