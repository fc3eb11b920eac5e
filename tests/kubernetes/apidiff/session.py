"""Sends a table of requests to both servers, one after the other, each in its order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.kubernetes.apidiff.exchange import Call, send
from tests.kubernetes.apidiff.servers import Answer, ComparedServer

SETTLE_TIMEOUT_S = 20.0


def run_calls(table: Any, real: ComparedServer, embedded: ComparedServer) -> Iterator[tuple[Call, Answer, Answer]]:
    """Each compared call of `table.CALLS` with both answers, in a new namespace `table.NS` with a service account."""
    answers: dict[str, dict[str, Answer]] = {real.name: {}, embedded.name: {}}
    with ThreadPoolExecutor(2) as both:
        yield from _run(table, both, real, embedded, answers)


def _run(
    table: Any,
    both: ThreadPoolExecutor,
    real: ComparedServer,
    embedded: ComparedServer,
    answers: dict[str, dict[str, Answer]],
) -> Iterator[tuple[Call, Answer, Answer]]:
    for call in [*_preparation(table.NS), *table.CALLS]:
        assert call.name not in answers[real.name], f"two calls of this table are called {call.name!r}"
        futures = [(s, both.submit(_settled, s, call, answers[s.name])) for s in (real, embedded)]
        for server, future in futures:
            answer = future.result()
            assert call.compare or answer.status < 300, f"{server.name}: {call.name}: {answer.text}"
            answers[server.name][call.name] = answer
        if call.compare:
            yield call, answers[real.name][call.name], answers[embedded.name][call.name]


def _settled(server: ComparedServer, call: Call, answers: dict[str, Answer]) -> Answer:
    end = time.monotonic() + SETTLE_TIMEOUT_S
    while call.until not in (answer := send(server, call, answers)).text:
        assert time.monotonic() < end, f"{server.name}: {call.name}: no {call.until!r} in {answer.text}"
        time.sleep(0.05)
    return answer


def _preparation(ns: str) -> list[Call]:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ns}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    return [
        Call("the namespace", "POST", "/api/v1/namespaces", space, compare=False),
        Call("the service account", "POST", f"/api/v1/namespaces/{ns}/serviceaccounts", account, compare=False),
    ]
