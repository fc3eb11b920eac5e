"""External advisors of `--external-advisors`, as periodic tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from koordlet.app.flags import FlagError
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.external.advisor import ExternalAdvisor, ExternalAdvisors
from koordlet.metricsadvisor.external.config import ExternalAdvisorError, read_file
from koordlet.statesinformer.pods.model import Workloads
from koordlet.wiring.context import WiringContext


def external_advisors(
    context: WiringContext, workloads: Callable[[], Workloads], conditions: CollectorConditions
) -> ExternalAdvisors:
    """Without the flag: none. Raises FlagError."""
    path = context.options.external_advisors
    try:
        configs = read_file(Path(path)) if path else ()
    except ExternalAdvisorError as error:
        raise FlagError(f"--external-advisors: {error}") from error
    advisors = ExternalAdvisors(tuple(ExternalAdvisor(config, workloads, conditions) for config in configs), workloads)
    advisors.attach(context.registries)
    for advisor in advisors.advisors:
        context.runner.add(context.periodic(advisor.name, advisor.config.interval_seconds, advisor.read))
    return advisors
