"""The leader election of a process, from its configuration."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final

from prometheus_client import CollectorRegistry

from control.component.errors import ConfigurationError
from control.component.settings import LeaderElection
from koordlet.app.health import HealthChecks
from koordlet.kube import Client, LeaderElector

MAX_LEASE_OVERDUE_S: Final = 20.0
"""How long the renewal of the lease may be overdue before /healthz fails."""


async def lead(elector: LeaderElector | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` while this process leads: always without leader election."""
    await (work() if elector is None else elector.run(work))


def lease_elector(
    client: Client, lease: LeaderElection, registry: CollectorRegistry, health: HealthChecks
) -> LeaderElector | None:
    """The candidate for the lease, with its health check; None if leader election is off. Raises ConfigurationError."""
    if not lease.leader_elect:
        return None
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"
    try:
        elector = LeaderElector(
            client,
            lease.resource_namespace,
            lease.resource_name,
            identity,
            lease_duration=lease.lease_duration.seconds,
            renew_deadline=lease.renew_deadline.seconds,
            retry_period=lease.retry_period.seconds,
            registry=registry,
        )
    except ValueError as error:
        raise ConfigurationError([f"leaderElection: {error}"]) from error
    limit = lease.lease_duration.seconds + MAX_LEASE_OVERDUE_S

    def overdue() -> str | None:
        seconds = elector.unrenewed
        return f"failed election to renew leadership on lease {lease.resource_name}" if seconds > limit else None

    health.check("leaderElection", overdue, live=True)
    return elector
