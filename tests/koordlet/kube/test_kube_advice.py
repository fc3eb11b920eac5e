"""Errors of a wrong installation say what to do; an unsupported API server is a readiness problem until upgraded."""

import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeMetric
from koordlet.api.encoding.base import Struct
from koordlet.kube import Client, ClientConfig, ConnectionFailed, Forbidden, NotFound, Unauthorized
from koordlet.kube.advice import advice, with_advice
from koordlet.kube.decode import resource_of
from koordlet.kube.errors import KubeError
from koordlet.kube.serverversion import ServerInfo, ServerVersionCheck, problem_of
from tests.fakeclock import FakeClock
from tests.waiting import until


def connection(cause: ConnectionRefusedError | ssl.SSLCertVerificationError) -> ConnectionFailed:
    error = ConnectionFailed("GET https://server/api: failed")
    error.__cause__ = cause
    return error


ADVICE = {
    "token": (Unauthorized(401), Node, "renew the token or client certificate"),
    "no right": (Forbidden(403), Node, "apply rbac.yaml"),
    "no CRD": (
        NotFound(404),
        NodeMetric,
        "serve nodemetrics.slo.koordinator.sh/v1alpha1: apply the CRDs (deploy/crds)",
    ),
    "old server": (NotFound(404), Node, "serve nodes.core/v1: use Kubernetes 1.24 or later"),
    "refused": (connection(ConnectionRefusedError()), Node, "check that the API server runs"),
    "wrong CA": (connection(ssl.SSLCertVerificationError()), Node, "certificate-authority"),
}


@pytest.mark.parametrize(("error", "kind", "text"), ADVICE.values(), ids=ADVICE)
def test_errors_of_a_wrong_installation_say_what_to_do(error: KubeError, kind: type[Struct], text: str) -> None:
    resource = resource_of(kind, None)
    assert text in advice(error, resource)
    assert with_advice(error, resource).startswith(str(error))


def test_an_object_that_does_not_exist_needs_no_advice() -> None:
    assert advice(NotFound(404)) == ""
    assert with_advice(NotFound(404)) == "404 Not Found"


VERSIONS = {
    "too old": ("1", "23", True),
    "much too old": ("0", "99", True),
    "oldest": ("1", "24", False),
    "with a suffix": ("1", "24+", False),
    "old, with a suffix": ("1", "9+", True),
    "newer": ("2", "0", False),
    "absent": ("", "", False),
    "no number": ("one", "²", False),
    "endless": ("1", "9" * 10_000, False),
}


@pytest.mark.parametrize(("major", "minor", "bad"), VERSIONS.values(), ids=VERSIONS)
def test_versions_before_the_oldest_are_not_supported(major: str, minor: str, bad: bool) -> None:
    problem = problem_of(ServerInfo(major=major, minor=minor, git_version=f"v{major}.{minor}.0"))
    assert (problem is not None) == bad
    if problem is not None:
        assert f"v{major}.{minor}.0 is not supported: upgrade Kubernetes to 1.24 or later" in problem


class VersionServer:
    """Answers /version with `answer`: a body, or an HTTP status."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.requests = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.requests += 1
        if isinstance(self.answer, int):
            return web.Response(status=self.answer)
        return web.json_response(self.answer)


@pytest.fixture
async def server() -> AsyncIterator[VersionServer]:
    answers = VersionServer()
    app = web.Application()
    app.router.add_get("/version", answers.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    answers.url = f"http://127.0.0.1:{runner.addresses[0][1]}"  # type: ignore[attr-defined]
    yield answers
    await runner.cleanup()


async def test_the_check_recovers_when_the_server_is_upgraded(
    server: VersionServer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = {"major": "1", "minor": "19", "gitVersion": "v1.19.3"}
    async with Client(ClientConfig(server=server.url, qps=0), clock=clock) as client:  # type: ignore[attr-defined]
        check = ServerVersionCheck(client)
        await check.start()
        await until(lambda: "v1.19.3 is not supported" in (check.problem or ""))
        server.answer = {"major": "1", "minor": "35", "gitVersion": "v1.35.6"}
        await until(lambda: check.problem is None)
        await check.stop()
    assert caplog.text.count("API server is not supported") == 1


@pytest.mark.parametrize("answer", [403, 404, ["no object"]])
async def test_a_server_that_does_not_tell_its_version_is_not_judged(
    server: VersionServer, clock: FakeClock, answer: int | list[str]
) -> None:
    server.answer = answer  # type: ignore[assignment]
    async with Client(ClientConfig(server=server.url, qps=0), clock=clock) as client:  # type: ignore[attr-defined]
        check = ServerVersionCheck(client)
        await check.start()
        await until(lambda: server.requests >= 2)
        await check.stop()
        assert check.problem is None
