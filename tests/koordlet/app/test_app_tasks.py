"""Ending background tasks."""

from __future__ import annotations

import asyncio

from koordlet.app.tasks import end_tasks


async def test_waits_for_the_end_of_every_task_whatever_it_raises() -> None:
    ended: list[str] = []

    async def failing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("failing")
            raise ValueError("at the end")

    async def waiting() -> None:
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(failing()), asyncio.create_task(waiting())]
    await asyncio.sleep(0)
    await end_tasks(None, *tasks)
    assert ended == ["failing"] and tasks[1].cancelled()
