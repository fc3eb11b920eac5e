"""`koordctl up`: start what does not run, and wait until each part is ready.

Can be repeated: a running part is not touched, a killed one is started again on its old state. If a part does not
become ready, `up` fails with its log's last lines; parts started before keep running.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from control.ctl.errors import CtlError
from control.ctl.node import cluster, containers, preflight, reclaim
from control.ctl.node.parts import PARTS, Layout, Part, of
from control.ctl.node.state import Lock, NodeSettings
from control.ctl.node.supervisor import Supervisor
from control.ctl.progress import ProgressStep, TerminalProgress

POLL_S = 0.15
PORTS = (
    "apiserver_port",
    "kubelet_port",
    "koordlet_port",
    "manager_port",
    "webhook_port",
    "scheduler_port",
    "runtimeproxy_port",
)
SECOND_PORTS = ("second_kubelet_port", "descheduler_port")
ADDABLE = ("second_node", *SECOND_PORTS)
"""Settings that only add parts: they may be set while others run."""


def settle(
    known: NodeSettings | None, options: Mapping[str, object], running: Collection[str], hostname: str
) -> NodeSettings:
    """The settings to use: options override those of the last `up`, which override the defaults.

    Settings of a running part cannot change: CtlError names the first difference. Port 0 becomes a free port, unless
    the last `up` has chosen one.
    """
    base = known or NodeSettings(node_name=hostname)
    changes = {name: value for name, value in options.items() if value is not None}
    for name in PORTS:
        if changes.get(name) == 0 and known is not None:
            del changes[name]
    if changes.get("runtime") == containers.AUTO and running:
        del changes["runtime"]  # decided already
    desired = msgspec.structs.replace(base, **changes)
    if running and known is not None:
        for name in msgspec.structs.asdict(desired):
            old, new = getattr(known, name), getattr(desired, name)
            if old != new and (old or name not in ADDABLE):
                option = name.replace("_", "-").replace("apiserver-port", "port")
                raise CtlError(
                    f"--{option} {new} differs from {old}, which {', '.join(sorted(running))} use",
                    "Run `koordctl down` first, or omit the option.",
                )
    ports = (*PORTS, *SECOND_PORTS) if desired.second_node else PORTS
    free = [name for name in ports if getattr(desired, name) == 0]
    return msgspec.structs.replace(desired, **dict(zip(free, preflight.free_ports(len(free)), strict=True)))


async def up(
    state_dir: Path, options: Mapping[str, object], *, without: Collection[str] = (), progress: TerminalProgress
) -> NodeSettings:
    """Bring the node up; returns its settings. Raises CtlError."""
    preflight.refuse_unknown_parts(without, [part.name for part in PARTS if not part.runtime and not part.second])
    selected_parts = [part for part in PARTS if part.name not in without]
    preflight.refuse(preflight.PreflightFacts(os.geteuid()), {part.name for part in selected_parts})
    layout = Layout(state_dir)
    with Lock(state_dir):
        supervisor = Supervisor(state_dir)
        running = {part.name for part in PARTS if supervisor.running(part.name) is not None}
        if "apiserver" in without and not {"apiserver"} & running and selected_parts:
            raise CtlError(
                "manager, scheduler, kubelet and koordlet need the API server",
                "Run `koordlet --standalone` for koordlet alone: it needs no API server and no kubelet.",
            )
        settings = settle(supervisor.state.settings, options, running, os.uname().nodename.lower())
        missing = [part for part in selected_parts if part.name not in running]
        if any(part.name == "kubelet" for part in missing):
            for line in reclaim.reclaim(state_dir):
                progress.good(line)
        if settings.bare:
            settings = msgspec.structs.replace(settings, runtime=containers.CONTAINERD)
        undecided = settings.runtime == containers.AUTO
        if "kubelet" not in without:
            settings = decide(settings, "kubelet" in running, containers.unusable(state_dir))
        ports = {part.name: part.port(settings) for part in missing if part in of(settings) and part.port is not None}
        facts = preflight.collect_facts(layout.kubelet_root, ports)
        preflight.refuse(facts, {part.name for part in missing}, bare=settings.bare)
        supervisor.settle(settings)
        for part in selected_parts:
            if part not in of(settings) or (part.runtime and "kubelet" in without):
                continue
            if part.name == containers.CONTAINERD and undecided:
                settings = await try_containerd(supervisor, part, layout, settings, progress)
                continue
            with progress.step(part.name) as step:
                await _bring_up(supervisor, part, layout, settings, step)
            if part.name == "apiserver":
                with progress.step("base objects") as step:
                    managed = "manager" in running or "manager" not in without
                    await cluster.prepare(layout.admin_kubeconfig, settings, layout.agents(settings), manager=managed)
                    own = "configuration, webhooks" if managed else "NodeMetric, NodeSLO"
                    base = f"CRDs, priority classes, service accounts and rights, {own}"
                    step.done("the kubelet's account and rights" if settings.bare else base)
        if "kubelet" not in without:
            progress.good(containers.describe_runtime(settings))
    return settings


def decide(settings: NodeSettings, kubelet_runs: bool, unusable: str | None) -> NodeSettings:
    """Choose the container runtime for "auto". Raises CtlError when the requested one is unusable."""
    if settings.runtime == containers.CONTAINERD and unusable is not None:
        raise CtlError(f"--runtime containerd: {unusable}", "`--runtime process` runs pods as plain processes.")
    if settings.runtime != containers.AUTO:
        return settings
    if kubelet_runs:  # started by an older koordctl without containers
        return msgspec.structs.replace(settings, runtime=containers.PROCESS, runtime_reason="")
    chosen = containers.PROCESS if unusable is not None else containers.CONTAINERD
    return msgspec.structs.replace(settings, runtime=chosen, runtime_reason=unusable or "")


async def try_containerd(
    supervisor: Supervisor, part: Part, layout: Layout, settings: NodeSettings, progress: TerminalProgress
) -> NodeSettings:
    """Start containerd; if it does not work, pods are plain processes ("auto")."""
    with progress.step(part.name) as step:
        try:
            await _bring_up(supervisor, part, layout, settings, step)
        except CtlError as error:
            supervisor.stop(part.name, part.stop_seconds)
            step.done(f"not used, see {supervisor.log_path(part.name)}")
            settings = msgspec.structs.replace(settings, runtime=containers.PROCESS, runtime_reason=error.message)
            supervisor.settle(settings)
    return settings


async def _bring_up(
    supervisor: Supervisor, part: Part, layout: Layout, settings: NodeSettings, step: ProgressStep
) -> None:
    known = supervisor.running(part.name)
    if not known:
        for path, text in part.files(layout, settings).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        part.before(layout, settings)
    process = known or supervisor.start(part.name, part.argv(layout, settings), part.environ(layout, settings))
    deadline = time.monotonic() + part.ready_seconds
    while True:
        if supervisor.ended(part.name):
            raise CtlError(f"{part.name} ended while it was starting", supervisor.tail(part.name))
        problem = await part.problem(layout, settings)
        if problem is None:
            break
        step.note(problem)
        if time.monotonic() > deadline:
            raise CtlError(
                f"{part.name} (pid {process.pid}) is not ready after {part.ready_seconds:g} s: {problem}",
                supervisor.tail(part.name)
                + "\n  Run `koordctl up` again to continue waiting, or `koordctl down` to stop.",
            )
        await asyncio.sleep(POLL_S)
    if not known and part.after is not None:
        await part.after(layout, settings)
    port = f", port {part.port(settings)}" if part.port is not None else ""
    step.done(f"{'already runs' if known else 'ready'}, pid {process.pid}{port}")
