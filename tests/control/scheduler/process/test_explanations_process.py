"""A ScheduleExplanation gets its status from a scheduler under its own account."""

from __future__ import annotations

from typing import Any

from control.scheduler.explain import controller as explanations
from koordlet.api.crs.explanation import ScheduleExplanation
from koordlet.kube import NotFound
from tests.waiting import until

PATH = "/apis/scheduling.koordinator.sh/v1alpha1/namespaces/default/scheduleexplanations"
P = "gang.scheduling.koordinator.sh/"


async def test_questions_are_answered_and_removed(world: Any, scheduler: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(explanations, "SWEEP_PERIOD_S", 0.05)
    monkeypatch.setattr(explanations, "MIN_INTERVAL_S", 0.05)
    await world.node("n1", cpu="1")
    running = await scheduler()

    async def ask(name: str, key: str, **spec: str) -> None:
        kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ScheduleExplanation"}
        body = {**kind, "metadata": {"name": name}, "spec": {"questionObjectKey": key, **spec}}
        await world.admin.raw("POST", PATH, body=body)

    async def answered(name: str, text: str) -> Any:
        status = (await world.admin.get(ScheduleExplanation, name, "default")).status
        return status if status.last_update_time is not None and text in status.failed_message else None

    await world.pod("big", cpu="2")
    for number in (1, 2):
        notes = {P + "name": "g", P + "min-available": "2"}
        await world.pod(f"m{number}", cpu="700m", annotations=notes)
    await ask("pod", "default/big")
    await ask("gang", "default/g")
    await ask("soon-over", "default/big", ttl="1s")
    answer = await until(lambda: answered("pod", "0/1 nodes are available: 1 Insufficient cpu."))
    assert not answer.schedulable
    answer = await until(lambda: answered("gang", "default/m2: 0/1 nodes are available: 1 Insufficient cpu."))
    (part,) = answer.detailed_explanation
    assert [result.name for result in part.schedule_explanation.feasible_scheduling_result] == ["m1"]

    async def over() -> bool:
        try:
            await world.admin.get(ScheduleExplanation, "soon-over", "default")
        except NotFound:
            return True
        return False

    await until(over)
    await world.node("n2", cpu="4")
    await until(lambda: world.bound("big", "m1", "m2"))

    async def placed() -> bool:
        status = (await world.admin.get(ScheduleExplanation, "pod", "default")).status
        return bool(status.schedulable and not status.failed_message)

    await until(placed)
    metrics = (await running.page("/metrics"))[1]
    assert 'scheduler_schedule_explanations_total{result="expired"} 1.0' in metrics
    assert 'scheduler_schedule_explanations_total{result="failed"}' not in metrics
