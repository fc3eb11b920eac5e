"""A gang preempts pods of lower priority, with a real API server and the shipped profile."""

from __future__ import annotations

from typing import Any

import yaml

from tests.waiting import until

P = "gang.scheduling.koordinator.sh/"


async def test_a_gang_takes_the_place_of_others(world: Any, scheduler: Any) -> None:
    """The cheaper node is emptied, as far as it must be; those who leave are told."""
    path = world.tmp / "config.yaml"
    config = yaml.safe_load(path.read_text())
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "CoschedulingArgs"}
    config["profiles"][0]["pluginConfig"].append({"name": "Coscheduling", "args": {**kind, "enablePreemption": True}})
    path.write_text(yaml.safe_dump(config))
    classes = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    for name, value in (("middle", 100), ("high", 1000)):
        await world.apply({**classes, "metadata": {"name": name}, "value": value})
    for name in ("n1", "n2"):
        await world.node(name, cpu="3")
    for number in range(3):
        await world.pod(f"middle-{number}", on="n1", priorityClassName="middle", terminationGracePeriodSeconds=0)
        await world.pod(f"low-{number}", on="n2", terminationGracePeriodSeconds=0)
    running = await scheduler()
    gang = {P + "name": "g", P + "min-available": "2"}
    for name in ("g1", "g2"):
        await world.pod(name, annotations=gang, priorityClassName="high")
    placed = await until(lambda: world.bound("g1", "g2"))
    assert (placed["g1"], placed["g2"]) == ("n2", "n2")
    assert sum(name.startswith("low") for name in placed) == 1
    assert sum(name.startswith("middle") for name in placed) == 3
    metrics = (await running.page("/metrics"))[1]
    assert 'scheduler_job_preemption_duration_seconds_count{jobName="default/g",result="preempt success' in metrics
    gone = {f"low-{number}" for number in range(3)} - set(placed)

    async def told() -> bool:
        return all(["Preempted" in await world.events(name) for name in gone])

    assert len(gone) == 2
    await until(told)
