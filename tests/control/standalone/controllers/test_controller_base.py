"""The base class of all controllers: start, stop, restart, and the expected failures."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from control.standalone import errors
from control.standalone.controllers import build
from control.standalone.controllers.base import EmbeddedController, itself
from control.standalone.registry import ObjectRegistry
from tests.control.standalone.controllers.conftest import Cluster

CM = "/configmaps"


class Recorder(EmbeddedController):
    name = "recorder"

    def __init__(self, registry: ObjectRegistry, failures: Sequence[errors.StatusError | RuntimeError] = ()) -> None:
        super().__init__(registry)
        self.keys: list[Any] = []
        self.failures = list(failures)

    def watches(self) -> dict[str, Callable[..., Any]]:
        return {CM: itself}

    async def reconcile(self, key: tuple[str, str]) -> None:
        self.keys.append(key)
        if self.failures:
            raise self.failures.pop(0)
        return None


async def test_every_existing_object_is_reconciled_at_every_start(
    cluster: Cluster, running: Callable[..., Awaitable[None]]
) -> None:
    await cluster.create(CM, "a")
    recorder = Recorder(cluster.registry)
    await running(recorder, lambda: recorder.keys == [("default", "a")])
    await cluster.create(CM, "b")
    recorder.keys.clear()
    await running(recorder, lambda: sorted(recorder.keys) == [("default", "a"), ("default", "b")])


async def test_changes_and_deletions_are_reconciled(cluster: Cluster, running: Callable[..., Awaitable[None]]) -> None:
    recorder = Recorder(cluster.registry)
    await recorder.start()
    await cluster.create(CM, "a")
    await cluster.registry.delete(CM, "default", "a")
    await recorder.stop()
    assert recorder.keys.count(("default", "a")) >= 1


FAILURES = [errors.conflict("", "configmaps", "a"), errors.internal("disk"), RuntimeError("bug")]


@pytest.mark.parametrize("failure", FAILURES, ids=["conflict", "status", "bug"])
async def test_a_failure_is_retried(
    cluster: Cluster, running: Callable[..., Awaitable[None]], failure: errors.StatusError | RuntimeError
) -> None:
    await cluster.create(CM, "a")
    recorder = Recorder(cluster.registry, [failure])
    await running(recorder, lambda: len(recorder.keys) == 2)


async def test_a_terminating_namespace_is_not_retried(
    cluster: Cluster, running: Callable[..., Awaitable[None]]
) -> None:
    going = errors.forbidden("", "pods", "p", "terminating")
    going.details = {"causes": [{"reason": "NamespaceTerminating"}]}
    recorder = Recorder(cluster.registry, [going])
    assert await recorder._attempt(("default", "a")) is None


async def test_all_controllers_start_and_stop_leaving_nothing_behind(cluster: Cluster) -> None:
    before = asyncio.all_tasks()
    controllers = build(cluster.registry, "PEM")
    for _ in range(2):
        for controller in controllers:
            await controller.start()
        await asyncio.sleep(0)
        for controller in reversed(controllers):
            await controller.stop()
    assert asyncio.all_tasks() == before
