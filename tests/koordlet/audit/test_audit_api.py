"""/events over HTTP: pages, tokens, forms, refusals."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from koordlet.audit import LogAuditor, pod
from koordlet.audit.api import (
    READER_IDLE_TIMEOUT_S,
    PageTokenError,
    Readers,
    SizeError,
    events_handler,
    page_size,
    wants_json,
)
from koordlet.audit.logfile import AuditLogFile
from tests.fakeclock import FakeClock

LIMIT = 2048


class Api:
    """A served log; `get` gives (status, headers, text)."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.log = AuditLogFile(directory, 16, clock=self.clock)
        self.auditor = LogAuditor(self.log, clock=self.clock)
        self.readers = Readers(directory, 4, clock=self.clock)
        self.url = ""

    def record(self, count: int) -> None:
        for number in range(count):
            self.auditor.record(1, pod("default", f"pod-{number}"), "Reason", f"{number}")

    async def get(self, query: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
        async with (
            ClientSession() as session,
            session.get(f"{self.url}/events{query}", headers=headers) as response,
        ):
            return response.status, dict(response.headers), await response.text()

    async def names(self, query: str = "") -> tuple[list[str], str]:
        status, headers, text = await self.get(query)
        assert status == 200, text
        return [json.loads(line)["name"] for line in text.splitlines()], headers.get("Next-Page-Token", "")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    served = Api(tmp_path)
    app = web.Application()
    handler = events_handler(served.readers, served.log.flush, LIMIT)
    app.router.add_get("/events", handler, allow_head=False)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()
    served.readers.close()
    served.log.close()


async def test_26_events_in_pages(api: Api) -> None:
    api.record(26)
    newest_first = [f"pod-{number}" for number in range(26)][::-1]
    names, token = await api.names("?size=10")
    assert names == newest_first[:10]
    page, same = await api.names(f"?size=1&pageToken={token}")
    assert (page, same) == (newest_first[10:11], token)
    rest = []
    while token:
        page, token = await api.names(f"?size=5&pageToken={same}")
        rest += page
    assert rest == newest_first[11:]
    assert len(page) < 5
    assert len(api.readers) == 0, "a log read to its end needs no reader"


async def test_the_newest_events_are_there_without_waiting(api: Api) -> None:
    api.record(1)
    assert await api.names() == (["pod-0"], "")


async def test_as_json(api: Api) -> None:
    api.record(3)
    status, headers, text = await api.get("?size=2", Accept="application/json")
    answer = json.loads(text)
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert list(answer) == ["NextPageToken", "Events"]
    assert [(event["name"], event["level"]) for event in answer["Events"]] == [("pod-2", 1), ("pod-1", 1)]
    _, _, text = await api.get(f"?pageToken={answer['NextPageToken']}", Accept="application/json")
    assert json.loads(text)["NextPageToken"] == ""
    assert [event["name"] for event in json.loads(text)["Events"]] == ["pod-0"]


async def test_an_empty_log(api: Api) -> None:
    status, headers, text = await api.get()
    assert (status, text) == (200, "")
    assert "Next-Page-Token" not in headers
    _, _, text = await api.get(Accept="application/json")
    assert json.loads(text) == {"NextPageToken": "", "Events": []}


async def test_malformed_lines_count_and_are_left_out(api: Api) -> None:
    api.record(2)
    api.log.append(b'{"torn\n')
    api.log.append(b"x" * 10_000 + b"\n")  # longer than a block
    api.record(1)
    names, token = await api.names("?size=3")
    assert names == ["pod-0"]
    assert await api.names(f"?size=3&pageToken={token}") == (["pod-1", "pod-0"], "")


REFUSED = {
    "too many": ("?size=2049", 400, "size(2049) exceeds the limit(2048)\n"),
    "negative": ("?size=-1", 400, "size(-1) is negative\n"),
    "unknown token": ("?pageToken=abc", 409, 'invalid pageToken "abc"\n'),
}


@pytest.mark.parametrize(("query", "status", "text"), REFUSED.values(), ids=REFUSED)
async def test_refusals_contain_only_the_reason(api: Api, query: str, status: int, text: str) -> None:
    api.record(1)
    response = await api.get(query)
    assert (response[0], response[2]) == (status, text)
    assert len(api.readers) == 0


async def test_an_expired_reader_is_refused_without_a_body_of_events(api: Api) -> None:
    api.record(3)
    _, token = await api.names("?size=1")
    api.clock.jump(1e6)  # wall time does not count
    _, token = await api.names(f"?size=1&pageToken={token}")
    await api.clock.advance(READER_IDLE_TIMEOUT_S + 1)
    api.readers.sweep()
    status, headers, text = await api.get(f"?pageToken={token}", Accept="application/json")
    assert (status, text) == (409, f"reader {token} is expired\n")
    assert "Next-Page-Token" not in headers


async def test_only_get(api: Api) -> None:
    async with ClientSession() as session, session.post(f"{api.url}/events") as response:
        assert response.status == 405


def test_the_newest_readers_stay(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_bytes(b'{"type":"node"}\n' * 3)
    readers = Readers(tmp_path, 4)
    tokens = [readers.open() for _ in range(9)]
    assert len(readers) == 4
    for token in tokens[:5]:
        with pytest.raises(PageTokenError, match="expired"):
            readers.page(token, 1)
    for token in tokens[5:]:
        assert len(readers.page(token, 1).events) == 1
    readers.close()
    assert len(readers) == 0


async def test_every_use_keeps_a_reader_alive(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_bytes(b'{"type":"node"}\n' * 9)
    clock = FakeClock()
    readers = Readers(tmp_path, 4, clock=clock)
    used, idle = readers.open(), readers.open()
    for _ in range(3):
        await clock.advance(READER_IDLE_TIMEOUT_S / 2)
        readers.page(used, 1)
        readers.sweep()
    assert len(readers.page(used, 1).events) == 1
    with pytest.raises(PageTokenError, match="expired"):
        readers.page(idle, 1)
    readers.close()


SIZES = {
    "absent": (None, 256),
    "no number": ("many", 256),
    "empty": ("", 256),
    "odd number": ("1_0", 256),
    "zero": ("0", 0),
    "plus": ("+7", 7),
    "limit": ("2048", 2048),
}


@pytest.mark.parametrize(("text", "expected"), SIZES.values(), ids=SIZES)
def test_sizes(text: str | None, expected: int) -> None:
    assert page_size(text, 2048) == expected


def test_the_default_never_exceeds_a_small_limit() -> None:
    assert page_size(None, 100) == 100
    with pytest.raises(SizeError):
        page_size("101", 100)


ACCEPTS: dict[str, tuple[list[str], bool]] = {
    "none": ([], False),
    "exact": (["application/json"], True),
    "browser": (["text/html,application/xhtml+xml,*/*;q=0.8"], False),
    "anything": (["*/*"], False),
    "list": (["text/html, application/json;q=0.9, */*"], True),
    "two headers": (["text/html", "application/json"], True),
    "refused": (["application/json;q=0"], False),
    "prefers text": (["application/json;q=0.5, text/plain"], False),
    "prefers json": (["text/plain;q=0.5, application/json"], True),
    "parameter": (["Application/JSON; charset=utf-8"], True),
    "bad weight": (["application/json;q=x"], False),
}


@pytest.mark.parametrize(("accept", "expected"), ACCEPTS.values(), ids=ACCEPTS)
def test_accept_lists(accept: list[str], expected: bool) -> None:
    assert wants_json(accept) is expected
