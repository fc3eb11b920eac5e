"""Objects that the webhooks read from the API server: uncached ones, and the enhanced validator's ConfigMap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from control.manager.webhooks.lookup import Lookup
from control.manager.webhooks.validatehooks import EnhancedSource
from koordlet.api.core import ConfigMap, Namespace
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import convert
from koordlet.kube import ConnectionFailed, NotFound, ServerError
from koordlet.kube.errors import KubeError
from tests.fakeclock import FakeClock

AWAY = [ConnectionFailed("refused"), ServerError(500, message="broken")]


class Server:
    """Answers GETs in turn: an object, or an error to raise."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.requests = list(answers), 0

    async def get(self, kind: type[Struct], name: str, namespace: str | None = None) -> Struct:
        self.requests += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        result: Struct = answer
        return result


def context(server: Server, cached: dict[str, Namespace] | None = None, clock: FakeClock | None = None) -> Any:
    options = SimpleNamespace(
        pod_enhanced_validator_config_name="rules",
        pod_enhanced_validator_config_namespace="ns",
        pod_enhanced_validator_reconcile_interval=300.0,
    )
    caches = SimpleNamespace(informer=lambda _: SimpleNamespace(get=lambda name: (cached or {}).get(name)))
    return SimpleNamespace(client=server, caches=caches, clock=clock or FakeClock(), options=options)


async def test_cached_objects_are_not_read() -> None:
    known, server = Namespace(), Server()
    assert await Lookup(context(server, {"a": known}), Namespace).get("a") is known
    assert server.requests == 0


@pytest.mark.parametrize("answer", [NotFound(404), *AWAY], ids=["missing", "no connection", "error"])
async def test_a_missing_object_is_none(answer: KubeError) -> None:
    assert await Lookup(context(Server(answer)), Namespace).get("a") is None


async def test_uncached_objects_are_read() -> None:
    namespace = Namespace()
    assert await Lookup(context(Server(namespace)), Namespace).get("a") is namespace


def config(**data: Any) -> ConfigMap:
    return convert({"data": data}, ConfigMap)


GOOD = config(enable="true", rules='[{"name":"r","requiredLabels":["team"]}]')


async def test_rules_are_read_at_first_use_and_again_when_they_are_old() -> None:
    clock, server = FakeClock(), Server(GOOD, config(enable="false"))
    source = EnhancedSource(context(server, clock=clock))
    for _ in range(3):
        assert (await source.rules()).enabled
    assert server.requests == 1
    await clock.advance(301)
    assert not (await source.rules()).enabled


@pytest.mark.parametrize("bad", [*AWAY, config(enable="true", rules="[")], ids=["no connection", "error", "malformed"])
async def test_the_last_valid_rules_are_kept(bad: ConnectionFailed | ServerError | ConfigMap) -> None:
    clock, server = FakeClock(), Server(GOOD, bad, NotFound(404))
    source = EnhancedSource(context(server, clock=clock))
    good = await source.rules()
    await clock.advance(301)
    assert await source.rules() is good
    await clock.advance(301)
    assert not (await source.rules()).enabled, "a ConfigMap that is gone switches them off"
