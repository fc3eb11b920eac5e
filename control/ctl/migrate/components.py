"""Flags and feature gates of Koordinator's workloads, checked by the parsers of this system's binaries. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from control.ctl.migrate.model import MigrationItem
from control.descheduler.process.options import DeschedulerOptions
from control.manager.options import ManagerOptions
from control.scheduler.process.options import SchedulerOptions
from koordlet.api import gates
from koordlet.app import flags
from koordlet.app.gates import FeatureGates, GateError
from koordlet.options import KoordletOptions

CHECKPOINTS: Final = "/var/lib/koordlet/prediction-checkpoints"
"""The node's folder of checkpoints in this system's DaemonSet."""


@dataclass(frozen=True)
class Component:
    """A binary: how its command line is read, and its gates."""

    options: type[Any]
    gates: Mapping[str, gates.Gate]
    base: tuple[str, ...] = ()
    """Arguments without which nothing can be read."""


COMPONENTS: Final[Mapping[str, Component]] = {
    "koordlet": Component(KoordletOptions, gates.KOORDLET, ("--node-name=node",)),
    "koord-manager": Component(ManagerOptions, gates.MANAGER),
    "koord-scheduler": Component(SchedulerOptions, gates.SCHEDULER),
    "koord-descheduler": Component(DeschedulerOptions, gates.DESCHEDULER),
}


def check_workload(workload: Mapping[str, Any]) -> Iterator[MigrationItem]:
    """A Deployment or DaemonSet of Koordinator."""
    name = workload["metadata"]["name"]
    component = COMPONENTS.get(name)
    if component is None:
        yield MigrationItem("component", name, "differs", "is no component of this system", "It stays as it is.")
        return
    yield check_selector(name, workload)
    spec = workload["spec"]["template"]["spec"]
    container = next((item for item in spec["containers"] if item["name"] in (name, name.removeprefix("koord-"))), None)
    container = container or spec["containers"][0]
    arguments = joined([*_after_binary(container.get("command") or []), *(container.get("args") or [])])
    yield from check_flags(name, component, arguments)
    yield from check_gates(name, component, arguments)
    if name == "koordlet":
        yield from check_checkpoints(spec, container, arguments)


def check_selector(name: str, workload: Mapping[str, Any]) -> MigrationItem:
    """The selector of a workload cannot be changed, so another one prevents that the manifests are applied over it."""
    selector = (workload["spec"].get("selector") or {}).get("matchLabels")
    if name == "koord-descheduler":
        todo = f"Delete deployment/{name} and apply deploy/descheduler and the rights that it needs, or keep it."
        return MigrationItem("component", name, "action", "is not part of deploy: it stays as it is", todo)
    if selector == {"koord-app": name}:
        return MigrationItem("component", name, "same", "is replaced in place, by a rolling update")
    todo = f"Delete the {workload.get('kind') or 'workload'} just before the manifests are applied."
    return MigrationItem("component", name, "action", f"has the selector {selector}", todo)


def _after_binary(command: Sequence[str]) -> Sequence[str]:
    return command[1:]


def joined(arguments: Sequence[str]) -> list[str]:
    """Each flag with its value as one argument; `--flag value` is the same as `--flag=value`."""
    result: list[str] = []
    for argument in arguments:
        if not argument.startswith("-") and result and result[-1].startswith("-") and "=" not in result[-1]:
            result[-1] += f"={argument}"
        else:
            result.append(argument)
    return result


def check_flags(name: str, component: Component, arguments: Sequence[str]) -> Iterator[MigrationItem]:
    """Each flag alone, so that one refused flag does not hide the others."""
    accepted = 0
    for argument in arguments:
        subject = f"{name} {argument.split('=', 1)[0]}"
        try:
            options = flags.read(component.options, [*component.base, argument])
        except (flags.FlagError, GateError) as error:
            if "feature-gates" not in argument:
                yield MigrationItem("flag", subject, "action", str(error), "Remove or correct the flag.")
            continue
        reasons = [*flags.deprecated(options).values(), *("has no effect" for _ in flags.unused(options))]
        if reasons:
            yield MigrationItem("flag", subject, "differs", f"accepted, without effect: {reasons[0]}")
        else:
            accepted += 1
    if accepted:
        yield MigrationItem("flag", name, "same", f"{accepted} flags are read as before")


def gates_of(arguments: Sequence[str]) -> str:
    """The text of all `--feature-gates`, as they accumulate."""
    texts = [argument.split("=", 1)[1] for argument in arguments if argument.lstrip("-").startswith("feature-gates=")]
    return ",".join(texts)


def check_gates(name: str, component: Component, arguments: Sequence[str]) -> Iterator[MigrationItem]:
    """Gates that are on there and off by default here would silently be lost."""
    parsed, unknown = FeatureGates(component.gates), []
    for part in filter(None, gates_of(arguments).split(",")):
        try:
            parsed.set(part)
        except GateError as error:
            unknown.append(part.split("=", 1)[0])
            yield MigrationItem("gate", f"{name} {part}", "action", str(error), "Remove the gate.")
    values = parsed.values()
    changed = {gate: on for gate, on in values.items() if on != component.gates[gate].default}
    if not changed:
        yield MigrationItem("gate", name, "same", "all gates have their defaults")
        return
    text = ",".join(f"{gate}={str(on).lower()}" for gate, on in changed.items())
    yield MigrationItem(
        "gate",
        name,
        "action",
        f"{len(changed)} gates differ from the defaults of this system's manifests",
        f"Set --feature-gates={text}",
    )


def check_checkpoints(
    spec: Mapping[str, Any], container: Mapping[str, Any], arguments: Sequence[str]
) -> Iterator[MigrationItem]:
    """Where koordlet keeps what it has learned about usage on the node."""
    flag = next((item for item in arguments if "prediction-checkpoint-filepath=" in item), "")
    inside = flag.split("=", 1)[1] if flag else "/prediction-checkpoints"
    mount = next((item for item in container.get("volumeMounts") or [] if item["mountPath"] == inside), None)
    volumes = {item["name"]: item for item in spec.get("volumes") or []}
    volume = volumes.get(mount["name"], {}) if mount is not None else {}
    path = (volume.get("hostPath") or {}).get("path", "")
    if path == CHECKPOINTS:
        yield MigrationItem("checkpoint", "koordlet", "same", f"{path} is read as before")
    elif path:
        yield MigrationItem(
            "checkpoint",
            "koordlet",
            "action",
            f"nodes have checkpoints in {path}; this system reads {CHECKPOINTS}",
            "Copy them on each node before the take-over, or predictions start cold for 24 h.",
        )
    else:
        yield MigrationItem("checkpoint", "koordlet", "differs", "there are none on the nodes; predictions start cold")
