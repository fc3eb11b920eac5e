"""`koordctl drain`: empties a node by koord-descheduler, after showing where its pods go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from control.ctl.cluster.choice import cluster_options, state_dir_option
from control.ctl.draining import NodeDraining
from control.ctl.errors import CtlError
from control.ctl.movecommands import kubeconfig_path
from control.ctl.terminal import UNCUT_COLUMNS, SafeConsole
from control.ctl.views.drains import DrainPlan, changes, plan_table, staying
from control.ctl.views.migrations import HINT
from control.ctl.views.output import FORMATS, formatted
from koordlet.api.crs import drain as d
from koordlet.kube import Client, ClientConfig, KubeError

REQUEST_TIMEOUT_S = 10.0
PLAN_S = 60.0
TABLE = "table"


@click.command("drain")
@click.argument("node")
@click.option("-y", "--yes", is_flag=True, help="Move the pods without asking.")
@click.option("--dry-run", is_flag=True, help="Show the plan, then undo it. Nothing is cordoned, no pod moves.")
@click.option("--abort", is_flag=True, help="End the drains of the node, and make it schedulable again.")
@click.option("--force", is_flag=True, help="Also move pods that the descheduler's filter refuses.")
@click.option("--timeout", "timeout_s", type=click.IntRange(1), default=3600, help="Seconds to follow the drain.")
@click.option("-o", "--output", type=click.Choice([TABLE, *FORMATS]), default=TABLE, help="Output format.")
@cluster_options
@state_dir_option
def drain_command(
    node: str,
    yes: bool,
    dry_run: bool,
    abort: bool,
    force: bool,
    timeout_s: int,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    state_dir: Path,
) -> None:
    """Empty a node: reserve a place for each of its pods, show the plan, and after confirmation move the pods.

    Limits and disruption budgets hold. The drain goes on when this command ends; the same command follows it again.
    Afterwards the node gets no new pods until `--abort`. Exit status 1 when a pod stays, or the drain is not complete.
    """
    if sum((yes, dry_run, abort)) > 1:
        raise click.UsageError("--yes, --dry-run and --abort exclude each other")
    if output != TABLE and not (yes or dry_run or abort):
        raise click.UsageError(f"-o {output} does not prompt: add --yes, --dry-run or --abort")
    path = kubeconfig_path(kubeconfig, state_dir, context)
    view = DrainView(output)
    try:
        complete = asyncio.run(_run(path, context, node, view, (yes, dry_run, abort, force), timeout_s))
    except KubeError as error:
        raise CtlError(f"cannot drain node {node}: {error}", HINT) from error
    except KeyboardInterrupt:
        view.say(
            f"The drain goes on. Follow it with `koordctl drain {node}`, end it with `koordctl drain {node} --abort`."
        )
        raise
    if not complete:
        raise SystemExit(1)


class DrainView:
    """The output: tables and lines, or one document at the end."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._console = SafeConsole(highlight=False)

    def say(self, text: str) -> None:
        if self._output == TABLE:
            self._console.print(text, markup=False, soft_wrap=True)

    def show(self, plan: DrainPlan) -> None:
        """The plan before the pods move."""
        if self._output != TABLE:
            return
        if plan.pods:
            uncut = SafeConsole(file=self._console.file, width=UNCUT_COLUMNS, color_system="auto", highlight=False)
            uncut.print(plan_table(plan))
        else:
            self.say(f"No pod of node {plan.node} has to move.")

    def end(self, plan: DrainPlan) -> None:
        """The result."""
        if self._output != TABLE:
            click.echo(formatted(plan, self._output))


async def _run(
    path: str | None, context: str | None, node: str, view: DrainView, flags: tuple[bool, ...], timeout_s: int
) -> bool:
    yes, dry_run, abort, force = flags
    config = ClientConfig.load(path, context=context, user_agent="koordctl", timeout=REQUEST_TIMEOUT_S)
    async with Client(config) as client:
        drain = NodeDraining(client, node)
        if abort:
            return await _abort(drain, node, view)
        await drain.begin(cordon=not dry_run, force=force)
        if dry_run and not drain.is_new:
            plan = await drain.plan()
            view.say(f"DrainNode {drain.name} drains the node already.")
            view.show(plan)
            view.end(plan)
            return not staying(plan)
        plan = await _planned(drain, view, timeout_s)
        if dry_run:
            await drain.undo([drain.name], d.REJECTED)
            view.end(plan)
            return not staying(plan)
        return await _move(drain, plan, view, yes=yes, timeout_s=timeout_s)


async def _planned(drain: NodeDraining, view: DrainView, timeout_s: float) -> DrainPlan:
    """The plan, shown. A drain of this program that no descheduler takes up is deleted."""
    view.say(f"DrainNode {drain.name}: reserving a place for each pod ...")
    try:
        plan = await drain.wait(lambda plan: plan.planned, min(PLAN_S, timeout_s))
    except CtlError:
        if drain.is_new:
            await drain.delete(drain.name)
        raise
    view.show(plan)
    if not plan.planned:
        view.say(f"The plan is not complete: {plan.message}. Is koord-scheduler running?")
    return plan


async def _move(drain: NodeDraining, plan: DrainPlan, view: DrainView, *, yes: bool, timeout_s: float) -> bool:
    left = staying(plan)
    if left:
        view.say(f"{len(left)} pods cannot move now.")
    if plan.phase != d.COMPLETE:
        if not (yes or drain.is_confirmed) and not await asyncio.to_thread(_is_confirmed, plan.node):
            await _decline(drain, view)
            return False
        await drain.confirm()
    async for latest in drain.looks(timeout_s):
        for line in changes(plan, latest):
            view.say(line)
        plan = latest
        if plan.phase in (d.COMPLETE, d.ABORTED):
            break
    view.say(f"Node {plan.node}: {plan.message or plan.phase}")
    if plan.phase == d.RUNNING:
        view.say("The time is over; the drain goes on.")
    view.end(plan)
    return plan.phase == d.COMPLETE and not staying(plan)


async def _decline(drain: NodeDraining, view: DrainView) -> None:
    """Undo the plan, unless it was there before: it may be the plan of another user, or of a DrainNodeGroup."""
    if drain.is_new:
        await drain.undo([drain.name], d.REJECTED)
        view.say("Nothing was changed.")
    else:
        view.say(f"DrainNode {drain.name} stays as it was. `koordctl drain {drain.node} --abort` ends it.")


def _is_confirmed(node: str) -> bool:
    try:
        return click.confirm(f"Move the pods of node {node}?")
    except click.Abort:  # the end of the input
        return False


async def _abort(drain: NodeDraining, node: str, view: DrainView) -> bool:
    names = [each.metadata.name for each in await drain.drains()]
    if not names:
        raise CtlError(f"no DrainNode names node {node}")
    await drain.undo(names, d.ABORT_REQUESTED)
    view.say(f"Ended {', '.join(names)}; node {node} gets new pods again.")
    view.end(DrainPlan(node=node, drain=names[-1], phase=d.ABORTED, pods=[]))
    return True
