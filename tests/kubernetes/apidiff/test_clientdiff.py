"""The official Python client gets the same objects and errors from the embedded API server and from kube-apiserver."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kubernetes import client, config, watch
from pydantic import ValidationError

from tests.kubernetes.apidiff.cases.client import CALLS, NS, WIDGETS, ClientCall
from tests.kubernetes.apidiff.exchange import normal, unequal
from tests.kubernetes.apidiff.known import CLIENT, KnownDifference
from tests.kubernetes.apidiff.servers import ComparedServer
from tests.kubernetes.processes import wait_for

VERSION = os.environ.get("KOORD_KUBERNETES", "v1.35")
pytestmark = [pytest.mark.kubernetes] if VERSION == "v1.35" else []  # `known` is about this version


class ClientSession:
    """The client of one server, and the resource versions of its named results."""

    def __init__(self, server: ComparedServer) -> None:
        self._client = config.new_client_from_config(str(server.kubeconfig))
        self._versions: dict[str, str] = {}

    def prepare(self) -> None:
        core = client.CoreV1Api(self._client)
        core.create_namespace({"metadata": {"name": NS}})
        core.create_namespaced_service_account(NS, {"metadata": {"name": "default"}})

    def send(self, call: ClientCall) -> Any:
        """What the client returned, or its error, as JSON data."""
        method = getattr(getattr(client, call.api)(self._client), call.method)
        try:
            result = method(*self._filled(call.args), **call.options)
        except client.ApiException as error:
            return {"status": error.status, "reason": error.reason, "body": _decoded(error.body)}
        except ValidationError as error:  # of the answer: the client checks it against its models
            return {"refused": [(detail["loc"], detail["type"]) for detail in error.errors()]}
        data = self._client.sanitize_for_serialization(result)
        if call.name:
            self._versions[call.name] = data["metadata"]["resourceVersion"]
        return data

    def serves_gadgets(self) -> bool:
        try:
            client.CustomObjectsApi(self._client).list_namespaced_custom_object(*WIDGETS)
        except client.ApiException:
            return False
        return True

    def events(self) -> list[Any]:
        """Type and object of the first three events of a watch of ConfigMaps that change meanwhile."""
        core, watching = client.CoreV1Api(self._client), watch.Watch()
        version = core.list_namespaced_config_map(NS).metadata.resource_version
        core.create_namespaced_config_map(NS, {"metadata": {"name": "watched"}})
        core.patch_namespaced_config_map("watched", NS, {"data": {"a": "b"}})
        core.delete_namespaced_config_map("watched", NS)
        stream: Iterator[Any] = watching.stream(
            core.list_namespaced_config_map, NS, resource_version=version, timeout_seconds=20
        )
        return [[event["type"], event["raw_object"]] for event, _ in zip(stream, range(3), strict=False)]

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._filled(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._filled(item) for item in value)
        if isinstance(value, str) and value[:1] == "{":
            return self._versions[value[1:-1]]
        return value


def _decoded(body: Any) -> Any:
    try:
        return json.loads(body)
    except (TypeError, ValueError):
        return body


def test_the_official_client_gets_the_same(servers: tuple[ComparedServer, ComparedServer]) -> None:
    sessions = [ClientSession(server) for server in servers]
    problems: list[str] = []
    used: set[KnownDifference] = set()
    with ThreadPoolExecutor(2) as both:
        list(both.map(ClientSession.prepare, sessions))
        for number, call in enumerate(CALLS):
            real, embedded = both.map(ClientSession.send, sessions, [call] * 2)
            where = f"call {number} {call.method}"
            for place, expected, actual in unequal("result", normal(real), normal(embedded)):
                rows = [row for row in CLIENT if row.covers(f"client/{call.method}", place)]
                used.update(rows)
                if not rows:
                    problems.append(f"{where}: {place}\n  kube-apiserver {expected!r}\n  embedded       {actual!r}")
            if call.method == "create_custom_resource_definition":
                for session in sessions:
                    wait_for(session.serves_gadgets, "Gadgets are served")
        real, embedded = both.map(ClientSession.events, sessions)
        problems += [
            f"watch: {place}\n  kube-apiserver {expected!r}\n  embedded       {actual!r}"
            for place, expected, actual in unequal("events", normal(real), normal(embedded))
        ]
    assert not problems, f"{len(problems)} differences in {len(CALLS)} calls:\n" + "\n".join(problems)
    stale = [row for row in CLIENT if row not in used]
    assert not stale, f"known differences that are gone: {stale}"
