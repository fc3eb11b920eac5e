"""Reads pages of the scheduler that leads."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

import aiohttp

from control.ctl.errors import CtlError
from control.ctl.views.bounded import read_bounded
from control.ctl.views.httperrors import describe
from koordlet.api.encoding.wire import WireError, decode

DEFAULT_SCHEDULER_URL = "http://127.0.0.1:10251"
TIMEOUT = aiohttp.ClientTimeout(total=10.0)

T = TypeVar("T")


def _session(session: aiohttp.ClientSession | None) -> AbstractAsyncContextManager[aiohttp.ClientSession]:
    return aiohttp.ClientSession() if session is None else nullcontext(session)


async def fetch_page(url: str, path: str, kind: type[T], session: aiohttp.ClientSession | None = None) -> T | None:
    """None when the scheduler has no such page (404). Raises CtlError when it does not respond."""
    address = url.rstrip("/") + path
    hint = "Start one with `koordctl up`, or give --scheduler-url as http://HOST:PORT of the replica that leads."
    try:
        async with _session(session) as client, client.get(address, timeout=TIMEOUT, allow_redirects=False) as response:
            status, body = response.status, await read_bounded(response)
    except aiohttp.InvalidURL as error:
        raise CtlError(f"{url!r} is not a URL", hint) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise CtlError(f"scheduler at {url} does not respond: {describe(error, url)}", hint) from error
    if status == 404:
        return None
    if status != 200:
        raise CtlError(
            f"the scheduler at {url} responds with HTTP {status}: {body[:200].decode(errors='replace')}", hint
        )
    try:
        return decode(body, kind, where=address)
    except WireError as error:
        raise CtlError(f"{error}: is it a koord-scheduler?", hint) from error
