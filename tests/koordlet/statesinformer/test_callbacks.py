"""Callbacks on changed state: one slot a type, serial within it, types side by side."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from koordlet.api.core import Node
from koordlet.api.meta import ObjectMeta
from koordlet.kube import Client, ClientConfig
from koordlet.statesinformer.callbacks import CallbackError, Callbacks, StateType
from koordlet.statesinformer.states import KubeStates

NODE, PODS = StateType.NODE_METADATA, StateType.ALL_PODS


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def callbacks() -> AsyncIterator[Callbacks]:
    callbacks = Callbacks({NODE: lambda: "node", PODS: lambda: True})
    yield callbacks
    await callbacks.stop()


async def test_a_burst_of_triggers_is_one_run(callbacks: Callbacks) -> None:
    calls: list[object] = []
    callbacks.register(NODE, "a", calls.append)
    for _ in range(5):
        callbacks.trigger(NODE)  # before the start: not lost
    await callbacks.start()
    await settle()
    assert calls == ["node"]


async def test_a_trigger_during_a_run_is_another_run_with_the_newest_state(callbacks: Callbacks) -> None:
    state, calls, go = ["old"], [], asyncio.Event()
    callbacks.add_source(NODE, lambda: state[0])

    async def slow(value: object) -> None:
        calls.append(value)
        await go.wait()

    callbacks.register(NODE, "slow", slow)
    await callbacks.start()
    callbacks.trigger(NODE)
    await settle()
    for state[0] in ("middle", "new"):
        callbacks.trigger(NODE)
    go.set()
    await settle()
    assert calls == ["old", "new"]


async def test_one_type_is_serial_in_order_and_does_not_hold_up_another(callbacks: Callbacks) -> None:
    order, go = [], asyncio.Event()

    async def first(_: object) -> None:
        order.append("first begins")
        await go.wait()
        order.append("first ends")

    callbacks.register(NODE, "first", first)
    callbacks.register(NODE, "second", lambda _: order.append("second"))
    callbacks.register(PODS, "pods", lambda _: order.append("pods"))
    await callbacks.start()
    callbacks.trigger(NODE)
    callbacks.trigger(PODS)
    await settle()
    assert sorted(order) == ["first begins", "pods"]
    go.set()
    await settle()
    assert order[2:] == ["first ends", "second"]


async def test_a_callback_that_raises_does_not_affect_others(callbacks: Callbacks) -> None:
    calls = []

    def bad(_: object) -> None:
        raise RuntimeError("no")

    async def cancelled(_: object) -> None:
        other = asyncio.create_task(asyncio.sleep(60))
        other.cancel()
        await other

    callbacks.register(NODE, "bad", bad)
    callbacks.register(NODE, "cancelled", cancelled)
    callbacks.register(NODE, "good", lambda _: calls.append(1))
    await callbacks.start()
    for runs in (1, 2):
        callbacks.trigger(NODE)
        await settle()
        assert len(calls) == runs
    assert callbacks.failures == {("NodeMetadata", "bad"): 2, ("NodeMetadata", "cancelled"): 2}


async def test_callbacks_are_not_called_without_an_object(callbacks: Callbacks) -> None:
    calls = []
    callbacks.add_source(NODE, lambda: None)
    for type in (NODE, StateType.NODE_TOPOLOGY):
        callbacks.register(type, "a", lambda _: calls.append(1))
        callbacks.trigger(type)
    await callbacks.start()
    await settle()
    assert calls == []


def test_callback_names_are_unique_per_type() -> None:
    callbacks = Callbacks({})
    callbacks.register(NODE, "a", lambda _: None)
    callbacks.register(PODS, "a", lambda _: None)
    with pytest.raises(CallbackError, match="callback a of NodeMetadata"):
        callbacks.register(NODE, "a", lambda _: None)
    with pytest.raises(CallbackError, match="unknown state type"):
        callbacks.register("Moon", "a", lambda _: None)  # type: ignore[arg-type]


# --- what triggers them


@pytest.fixture
async def states() -> AsyncIterator[KubeStates]:
    client = Client(ClientConfig("http://127.0.0.1:1"))
    yield KubeStates(client, "n1", tree_driver=lambda: None)
    await client.close()


def triggered(states: KubeStates) -> set[StateType]:
    """Which mailboxes are full; empties them."""
    types = {type for type, mailbox in states.callbacks._mailboxes.items() if mailbox.is_set()}
    for mailbox in states.callbacks._mailboxes.values():
        mailbox.clear()
    return types


def node(**labels: str) -> Node:
    return Node(metadata=ObjectMeta(name="n1", labels=labels))


async def test_node_metadata(states: KubeStates) -> None:
    (handler,) = states.node._handlers
    handler.on_add(node(a="1"))  # type: ignore[misc]
    assert triggered(states) == {StateType.NODE_METADATA}
    handler.on_update(node(a="1"), node(a="1"))  # type: ignore[misc]
    assert triggered(states) == set()
    handler.on_update(node(a="1"), node(a="2"))  # type: ignore[misc]
    assert triggered(states) == {StateType.NODE_METADATA}


async def test_callbacks_are_called_after_each_answer_of_the_kubelet(states: KubeStates) -> None:
    pods = states.connect(None)  # type: ignore[arg-type]  # nothing is asked here
    for _ in range(2):
        pods.replace([])
        assert triggered(states) == {PODS}
