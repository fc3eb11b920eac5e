"""Runs the controllers while this replica holds the lease `koordinator-manager` (spec 04 §1.4).

Losing the lease ends the process and so drops pending writes; the next leader starts from the state in the API server.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Sequence

from control.manager.context import COMPONENT, ManagerContext
from control.manager.controller import ManagerController
from control.manager.metrics import ManagerMetrics
from koordlet.app.logging import get_logger
from koordlet.kube import LeaderElector

log = get_logger(__name__)


def identity() -> str:
    """An identity unique to this process; its prefix is the pod's name, outside a pod the host's name."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


async def run_controllers(context: ManagerContext, controllers: Sequence[ManagerController]) -> None:
    """Run all controllers until one fails."""
    context.config.send_events()
    log.info("Starting controllers", controllers=",".join(controller.name for controller in controllers))
    async with asyncio.TaskGroup() as group:
        for controller in controllers:
            group.create_task(controller.run(), name=f"controller:{controller.name}")


async def lead(
    context: ManagerContext, controllers: Sequence[ManagerController], on_change: Callable[[bool], None]
) -> None:
    """Acquire the lease, then run the controllers until cancelled. `on_change` is called with whether this replica
    leads. Raises LeadershipLost when the lease is lost."""
    is_leader = ManagerMetrics.of(context.internal).is_leader
    options = context.options

    def leads(now: bool) -> None:
        is_leader.set(int(now))
        on_change(now)

    if not options.enable_leader_election:
        leads(True)
        await run_controllers(context, controllers)
        return
    elector = LeaderElector(
        context.client,
        options.leader_election_namespace or context.client.config.namespace,
        COMPONENT,
        identity(),
        lease_duration=options.leader_elect_lease_duration,
        renew_deadline=options.leader_elect_renew_deadline,
        retry_period=options.leader_elect_retry_period,
        on_started=lambda: leads(True),
        on_lost=lambda: leads(False),
        registry=context.framework,
    )
    leads(False)
    await elector.run(lambda: run_controllers(context, controllers))
