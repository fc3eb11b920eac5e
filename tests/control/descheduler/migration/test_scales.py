"""Replicas from API groups that tenants name (spec 07 §11.4): an answer that cannot be used is an error of that job."""

from __future__ import annotations

from typing import Any

import pytest

from control.descheduler.migration.scales import RETRY_S, Scales
from koordlet.api.meta import OwnerReference
from koordlet.kube import KubeError
from tests.fakeclock import FakeClock


class AnsweringClient:
    """A client whose API group answers with `body`."""

    def __init__(self, body: bytes) -> None:
        self.clock = FakeClock()
        self.body = body
        self.paths: list[str] = []

    async def raw(self, method: str, path: str) -> bytes:
        self.paths.append(path)
        return self.body


def owner(group: str = "broken.example/v1") -> OwnerReference:
    return OwnerReference(api_version=group, kind="Thing", name="a", uid="u1")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"resources": 5}'])
async def test_nonsense_of_an_api_group_is_an_error_that_is_remembered(body: bytes) -> None:
    client: Any = AnsweringClient(body)
    scales = Scales(client)
    for _ in range(3):
        with pytest.raises(KubeError, match=r"broken\.example/v1"):
            await scales.fetch("default", owner())
    assert len(client.paths) == 1, "it would delay the other jobs of each round"
    with pytest.raises(KubeError):
        await scales.fetch("default", owner("other.example/v1"))
    await client.clock.advance(RETRY_S)
    with pytest.raises(KubeError):
        await scales.fetch("default", owner())
    assert len(client.paths) == 3
