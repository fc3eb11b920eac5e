"""Delegated authentication and authorization: certificates, tokens, permissions by path, caching."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.names import PAGE_TOKEN_HEADER, PAGES_AUDIENCE
from koordlet.app.http import HttpServer
from koordlet.app.servertls import server_context
from koordlet.kube import ConnectionFailed
from koordlet.kube.delegated import (
    REVIEW_BURST,
    REVIEWS_PER_SECOND,
    AuthenticatedUser,
    DelegatedAuth,
    certified,
    claimed_audiences,
)
from tests.certificates import identity
from tests.fakeclock import FakeClock

USERS = {"good": {"username": "ada", "groups": ["devs"], "uid": "1", "extra": {"k": ["v"]}},
         "root": {"username": "root", "groups": ["system:masters"]}}  # fmt: skip


class Api:
    """An API server that knows two tokens and lets ada read /metrics."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.reviews: list[dict[str, Any]] = []
        self.away = False
        self.tokens: dict[str, set[str]] = {}
        """Tokens of ada, and their audiences."""
        self.unaware = False
        """The authenticator knows nothing of audiences."""

    def token(self, *audiences: str) -> str:
        """A token with these audiences."""
        payload = base64.urlsafe_b64encode(json.dumps({"aud": list(audiences), "sub": "ada"}).encode()).decode()
        token = f"head.{payload.rstrip('=')}.{len(self.tokens)}"
        self.tokens[token] = set(audiences)
        return token

    async def raw(self, method: str, path: str, *, body: Any) -> bytes:
        if self.away:
            raise ConnectionFailed("away")
        self.reviews.append(body)
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
            user = USERS.get(spec["token"])
            status: dict[str, Any] = {"authenticated": True, "user": user} if user else {}
            if spec["token"] in self.tokens:
                audiences, claimed = set(spec.get("audiences", ["https://api"])), self.tokens[spec["token"]]
                if audiences & claimed:
                    status = {"authenticated": True, "user": USERS["good"], "audiences": sorted(audiences & claimed)}
            if self.unaware and status:
                status.pop("audiences", None)
            return json.dumps({"status": status}).encode()
        assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        attributes = {"path": "/metrics", "verb": "get"}
        allowed = spec["user"] == "ada" and spec["nonResourceAttributes"] == attributes
        return json.dumps({"status": {"allowed": allowed}}).encode()


class Caller:
    """A server behind a gate, and a client of it."""

    def __init__(self, api: Api, server: HttpServer, session: aiohttp.ClientSession) -> None:
        self.api, self.server, self._session = api, server, session

    async def __call__(self, path: str, token: str = "", method: str = "GET", page_token: str = "") -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {PAGE_TOKEN_HEADER: page_token} if page_token else {}
        async with self._session.request(method, self.server.url + path, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def call() -> AsyncIterator[Caller]:
    api = Api()
    client: Any = api

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="numbers")

    gate = DelegatedAuth(client, public=("/healthz", "/open/*"), denied_seconds=3)
    routes = [web.route("*", path, page) for path in ("/metrics", "/configz", "/open/{any}")]
    server = HttpServer("127.0.0.1:0", routes=routes, tls=server_context(), middlewares=(gate.middleware,))
    await server.start()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:
        yield Caller(api, server, session)
    await server.stop()
    await asyncio.sleep(0)


async def test_permissions_are_per_path_and_verb(call: Caller) -> None:
    assert await call("/metrics", "good") == (200, "numbers")
    assert await call("/metrics", "good", "POST") == (403, 'forbidden: User "ada" cannot post path "/metrics"\n')
    assert await call("/configz", "good") == (403, 'forbidden: User "ada" cannot get path "/configz"\n')
    spec = next(review["spec"] for review in call.api.reviews if review["kind"] == "SubjectAccessReview")
    assert (spec["user"], spec["groups"], spec["uid"], spec["extra"]) == ("ada", ["devs"], "1", {"k": ["v"]})


async def test_anonymous_callers_may_read_only_public_paths(call: Caller) -> None:
    assert await call("/healthz") == (200, "ok")
    assert (await call("/open/anything"))[0] == 200
    assert call.api.reviews == []
    assert await call("/metrics") == (403, 'forbidden: User "system:anonymous" cannot get path "/metrics"\n')


async def test_an_unknown_token_is_refused(call: Caller) -> None:
    assert (await call("/healthz", "bad"))[0] == 401


async def test_a_token_for_pages_is_accepted_and_one_for_others_is_not(call: Caller) -> None:
    assert (await call("/metrics", call.api.token(PAGES_AUDIENCE)))[0] == 200
    assert (await call("/metrics", call.api.token("https://api")))[0] == 200, "a Prometheus"
    assert (await call("/metrics", call.api.token("https://api", PAGES_AUDIENCE)))[0] == 200
    assert (await call("/metrics", call.api.token("vault")))[0] == 401
    audiences = [review["spec"].get("audiences") for review in call.api.reviews if review["kind"] == "TokenReview"]
    assert audiences == [[PAGES_AUDIENCE], None, [PAGES_AUDIENCE], None]


async def test_the_header_for_page_tokens_carries_no_other_token(call: Caller) -> None:
    """What passes the API server's pods/proxy must not be a way for tokens of the API server."""
    assert (await call("/metrics", page_token=call.api.token(PAGES_AUDIENCE)))[0] == 200
    assert (await call("/configz", page_token=call.api.token(PAGES_AUDIENCE)))[0] == 403
    before = len(call.api.reviews)
    for token in ("good", call.api.token("https://api"), "x"):
        assert (await call("/metrics", page_token=token))[0] == 401
    assert len(call.api.reviews) == before, "nobody is asked about them"
    assert (await call("/metrics", "bad", page_token=call.api.token(PAGES_AUDIENCE)))[0] == 401


async def test_an_authenticator_that_ignores_audiences_is_not_believed(call: Caller) -> None:
    call.api.unaware = True
    assert (await call("/metrics", call.api.token(PAGES_AUDIENCE)))[0] == 401


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: f"a.{base64.urlsafe_b64encode(raw).decode()}.c"))
def test_any_text_may_be_a_token(token: str) -> None:
    assert all(isinstance(each, str) for each in claimed_audiences(token))


@pytest.mark.parametrize(
    "claims", ['{"aud": "koordinator-pages"}', "[" * 5000, '{"aud": [1]}', "[]", '{"aud": {}}', "1" * 5000, ""]
)
def test_odd_claims_name_no_audience(claims: str) -> None:
    assert claimed_audiences(f"a.{base64.urlsafe_b64encode(claims.encode()).decode()}.c") == ()


async def test_masters_may_do_everything(call: Caller) -> None:
    assert (await call("/configz", "root", "DELETE"))[0] == 200
    assert [review["kind"] for review in call.api.reviews] == ["TokenReview"]


async def test_decisions_are_cached(call: Caller) -> None:
    for _ in range(3):
        await call("/metrics", "good")
        await call("/configz", "good")
    assert len(call.api.reviews) == 3
    await call.api.clock.advance(4)
    await call("/metrics", "good")
    assert len(call.api.reviews) == 3
    await call("/configz", "good")
    assert len(call.api.reviews) == 4  # a no is remembered for three seconds here
    await call.api.clock.advance(10)
    await call("/metrics", "good")
    assert len(call.api.reviews) == 6


async def test_invented_tokens_are_limited_by_address(call: Caller) -> None:
    statuses = [(await call("/metrics", f"invented-{number}"))[0] for number in range(int(REVIEW_BURST) + 5)]
    assert statuses == [401] * int(REVIEW_BURST) + [429] * 5
    assert len(call.api.reviews) == REVIEW_BURST
    assert (await call("/healthz"))[0] == 200
    await call.api.clock.advance(2 / REVIEWS_PER_SECOND)
    assert (await call("/metrics", "good"))[0] == 200
    assert (await call("/metrics", "good"))[0] == 200, "cached results cost nothing"


async def test_requests_are_refused_while_the_api_server_is_unreachable(call: Caller) -> None:
    call.api.away = True
    assert (await call("/metrics", "good"))[0] == 503
    assert (await call("/healthz"))[0] == 200
    call.api.away = False
    assert (await call("/metrics", "good"))[0] == 200


async def test_client_certificates_authenticate(tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    ada = identity("ada")
    pem.write_bytes(ada.key_pem + ada.cert_pem)
    api = Api()
    client: Any = api

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="numbers")

    server = HttpServer("127.0.0.1:0", routes=[web.get("/metrics", page)], tls=server_context(pem, pem, pem),
                    middlewares=(DelegatedAuth(client).middleware,))  # fmt: skip
    await server.start()
    request = asyncio.create_task(_asked(pem, server.port))
    try:
        assert "200 OK" in await request
        assert [review["kind"] for review in api.reviews] == ["SubjectAccessReview"]
    finally:
        await server.stop()


async def _asked(pem: Path, port: int) -> str:
    """GET with a client certificate; the server's is verified against the same file."""
    tls = ssl.create_default_context(cafile=str(pem))
    tls.check_hostname = False
    tls.load_cert_chain(pem)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (((("commonName", "ada"),), (("organizationName", "a"),), (("organizationName", "b"),)),
         AuthenticatedUser("ada", ("a", "b", "system:authenticated"))),
        (((("organizationName", "a"),),), None),
        ((), None),
    ],
)  # fmt: skip
def test_users_of_certificates(subject: Any, expected: AuthenticatedUser | None) -> None:
    assert certified({"subject": subject}) == expected
    assert certified(None) is None


def test_versions_of_tls() -> None:
    assert server_context(minimum="VersionTLS13").minimum_version is ssl.TLSVersion.TLSv1_3
    assert server_context().minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(ValueError, match="VersionTLS13"):
        server_context(minimum="SSLv3")
