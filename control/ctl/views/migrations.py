"""`koordctl migrations`: which pods move, why, and how far each migration is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from control.ctl.errors import CtlError
from control.ctl.text import ABSENT, age
from koordlet.api.crs.migration import MODE_EVICT_DIRECTLY, PodMigrationJob, PodMigrationJobStatus
from koordlet.api.encoding.base import Struct
from koordlet.api.names import ANNOTATION_EVICT_REASON, ANNOTATION_EVICT_TRIGGER, ANNOTATION_PASSED_ARBITRATION, TRUE
from koordlet.kube import Client, ClientConfig, KubeError, NotFound

REQUEST_TIMEOUT_S = 10.0
HINT = "Choose the API server with --kubeconfig or KUBECONFIG."
ENDED = ("Succeeded", "Failed", "Aborted")
STYLES = {"Succeeded": "green", "Failed": "red", "Aborted": "red"}

DIRECT_STEPS = ("Eviction",)
RESERVED_STEPS = ("ReservationCreated", "ReservationScheduled", "Eviction", "ReservationBound", "BoundPodReady")
"""Conditions that become True one after the other, by mode."""


class MigrationSummary(Struct):
    """One job, as shown."""

    name: str
    pod: str
    phase: str
    to_node: str = ""
    new_pod: str = ""
    steps_done: int = 0
    steps: int = 0
    step: str = ""
    trigger: str = ""
    reason: str = ""
    message: str = ""
    age_seconds: float | None = None


async def fetch_migrations(kubeconfig: str | None, name: str = "", context: str | None = None) -> list[PodMigrationJob]:
    """All jobs, or the one of that name. Raises CtlError."""
    try:
        config = ClientConfig.load(kubeconfig, context=context, user_agent="koordctl", timeout=REQUEST_TIMEOUT_S)
        async with Client(config) as client:
            return [await client.get(PodMigrationJob, name)] if name else await client.list(PodMigrationJob)
    except NotFound as error:
        if name:
            raise CtlError(f"there is no PodMigrationJob {name}", "List all with `koordctl migrations`.") from error
        raise CtlError("the API server has no PodMigrationJobs", "Install the CRDs of deploy/crds.") from error
    except KubeError as error:
        raise CtlError(f"cannot list PodMigrationJobs: {error}", HINT) from error


def summaries(jobs: Sequence[PodMigrationJob], now: float, *, ended: bool = True) -> list[MigrationSummary]:
    """Running jobs first, then waiting, then ended ones; newest first. Without `ended` only those that still run."""
    order = {"Running": 0, "Waiting": 1}
    migrations = [summary_of(job, now) for job in jobs]
    if not ended:
        migrations = [each for each in migrations if each.phase not in ENDED]
    return sorted(migrations, key=lambda each: (order.get(each.phase, 2), each.age_seconds or 0.0, each.name))


def summary_of(job: PodMigrationJob, now: float) -> MigrationSummary:
    """What is shown of a job."""
    meta, status, ref = job.metadata, job.status, job.spec.pod_ref
    steps = DIRECT_STEPS if job.spec.mode == MODE_EVICT_DIRECTLY else RESERVED_STEPS
    done = sum(_is_true(status, step) for step in steps)
    created = meta.creation_timestamp
    return MigrationSummary(
        name=meta.name,
        pod=f"{ref.namespace}/{ref.name}",
        phase=_phase(job),
        to_node=status.node_name,
        new_pod=status.pod_ref.name if status.pod_ref is not None else "",
        steps_done=len(steps) if status.phase == "Succeeded" else done,
        steps=len(steps),
        step=status.status,
        trigger=meta.annotations.get(ANNOTATION_EVICT_TRIGGER, ""),
        reason=meta.annotations.get(ANNOTATION_EVICT_REASON, ""),
        message=": ".join(part for part in (status.reason, status.message) if part),
        age_seconds=now - created.unix if created is not None else None,
    )


def migrations_table(migrations: Sequence[MigrationSummary]) -> Table:
    """One line per job."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("NAME", "POD", "PHASE", "STEP", "PROGRESS", "TO", "NEW POD", "AGE", "WHY", "MESSAGE"):
        table.add_column(column)
    for summary in migrations:
        why = summary.reason or summary.trigger or ABSENT
        table.add_row(
            summary.name,
            summary.pod,
            Text(summary.phase, style=STYLES.get(summary.phase, "")),
            summary.step or ABSENT,
            f"{summary.steps_done}/{summary.steps}",
            summary.to_node or ABSENT,
            summary.new_pod or ABSENT,
            age(summary.age_seconds),
            why,
            summary.message or ABSENT,
        )
    return table


def migration_page(job: PodMigrationJob, now: float) -> Iterator[Text]:
    """One job with all its conditions, oldest change first."""
    summary = summary_of(job, now)
    yield Text.assemble(
        (summary.name, "bold"),
        f" moves pod {summary.pod}: {summary.phase}, {summary.steps_done} of {summary.steps} steps",
    )
    yield Text(
        f"  requested by {summary.trigger or 'a user'}" + (f" because {summary.reason}" if summary.reason else "")
    )
    if summary.to_node:
        yield Text(f"  to node {summary.to_node}" + (f", as pod {summary.new_pod}" if summary.new_pod else ""))
    if summary.message:
        yield Text(f"  {summary.message}", style=STYLES.get(summary.phase, ""))
    for condition in sorted(job.status.conditions, key=_changed_at):
        text = " ".join(part for part in (condition.reason, condition.message) if part)
        yield Text(
            f"  {age(now - _changed_at(condition)):>6} ago  {condition.type}={condition.status}  {text}".rstrip()
        )


def _phase(job: PodMigrationJob) -> str:
    if job.spec.paused and job.status.phase not in ENDED:
        return "Paused"
    if job.status.phase in ("", "Pending"):
        return "Starting" if job.metadata.annotations.get(ANNOTATION_PASSED_ARBITRATION) == TRUE else "Waiting"
    return job.status.phase


def _is_true(status: PodMigrationJobStatus, condition_type: str) -> bool:
    condition = status.condition(condition_type)
    return condition is not None and condition.status == "True"


def _changed_at(condition: object) -> float:
    at = getattr(condition, "last_transition_time", None)
    return at.unix if at is not None else 0.0
