"""Controllers run here, and only while this replica holds the lease `koordinator-manager` (spec 04 §1.4).

Losing the lease ends the process: what a controller was about to write is dropped with it, and the next leader starts
from what is in the API server.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Sequence

from control.manager.context import COMPONENT, Context
from control.manager.controller import Controller
from control.manager.metrics import ManagerMetrics
from koordlet.app.logging import get_logger
from koordlet.kube import LeaderElector

log = get_logger(__name__)


def identity() -> str:
    """Unique for this process, with the host's name in front, which in a pod is the pod's."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


async def run_controllers(context: Context, controllers: Sequence[Controller]) -> None:
    """All of them, until one fails."""
    context.config.tell()
    log.info("Controllers start", controllers=",".join(controller.name for controller in controllers))
    async with asyncio.TaskGroup() as group:
        for controller in controllers:
            group.create_task(controller.run(), name=f"controller:{controller.name}")


async def lead(context: Context, controllers: Sequence[Controller]) -> None:
    """Campaign, then run the controllers; raises LeadershipLost when the lease is gone. Ends by cancellation."""
    leading = ManagerMetrics.of(context.internal).is_leader
    options = context.options
    if not options.enable_leader_election:
        leading.set(1)
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
        on_started=lambda: leading.set(1),
        on_lost=lambda: leading.set(0),
        registry=context.framework,
    )
    leading.set(0)
    await elector.run(lambda: run_controllers(context, controllers))
