"""The demo's pod that is written as any pod and becomes best effort by a ClusterColocationProfile; pure checks.

`lent` looks at the node (what the manager lends), `admitted` at the pod that was stored, `placed` at the kernel's
files: its cgroup is one of best-effort pods, with the weight and the limits of its batch resources.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from control.ctl.demo.judge import Verdict
from koordlet.api import names
from koordlet.api.encoding.quantity import ZERO, Quantity

CPU, MEMORY = names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY
RECLAIM_PERCENT = 300
"""Of the node's CPUs, in the demo: this machine may be busy with other work, which counts against what is lent."""
_PERIOD = 100_000


def strategy(present: str) -> str:
    """The ConfigMap's colocation-config with the demo's share of CPUs."""
    return json.dumps({**json.loads(present or "{}"), "cpuReclaimThresholdPercent": RECLAIM_PERCENT})


def lent(node: dict[str, Any]) -> Verdict:
    """Does the node lend what the pod asks for?"""
    allocatable = node["status"].get("allocatable") or {}
    amounts = {name: Quantity(str(allocatable.get(name, "0"))) for name in (CPU, MEMORY)}
    said = ", ".join(f"{name} {amount}" for name, amount in amounts.items())
    return Verdict(amounts[CPU].value() >= 200 and amounts[MEMORY] >= Quantity("64Mi"), f"the node lends {said}")


def admitted(pod: dict[str, Any]) -> Verdict:
    """Is the pod best effort, of batch priority, with batch resources in place of cpu and memory?"""
    meta, spec = pod["metadata"], pod["spec"]
    qos = (meta.get("labels") or {}).get(names.LABEL_QOS_CLASS)
    requests = _amounts(pod, "requests")
    kept = names.ANNOTATION_EXTENDED_RESOURCE_SPEC in (meta.get("annotations") or {})
    classes = (qos, spec.get("priorityClassName"), spec.get("priority"))
    good = classes == ("BE", "koord-batch", 5000) and sorted(requests) == [CPU, MEMORY] and kept
    said = f"{meta['name']} is {qos or 'of no QoS class'}, priority {spec.get('priority')}"
    return Verdict(good, f"{said}, requests {', '.join(f'{name} {amount}' for name, amount in requests.items())}")


def scheduled(pod: dict[str, Any], node: str) -> Verdict:
    """Did the scheduler that the profile names put the pod on the node, and say so?"""
    spec = pod["spec"]
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
    good = spec.get("schedulerName") == "koord-scheduler" and spec.get("nodeName") == node
    said = f"{pod['metadata']['name']} was put on {spec.get('nodeName')} by {spec.get('schedulerName')}"
    return Verdict(good and conditions.get("PodScheduled") == "True", said)


def placed(pod: dict[str, Any], group: Path, memory_group: Path) -> Verdict:
    """Do the pod's processes run below the best-effort group, with weight, quota and limit of its batch resources?"""
    requests, limits = _amounts(pod, "requests"), _amounts(pod, "limits")
    shares = max(2, requests.get(CPU, ZERO).value() * 1024 // 1000)
    quota = limits.get(CPU, ZERO).value() * _PERIOD // 1000
    memory = limits.get(MEMORY, ZERO).value()
    if (group / "cpu.shares").exists():
        wanted = {"cpu.shares": f"{shares}", "cpu.cfs_quota_us": f"{quota}", "memory.limit_in_bytes": f"{memory}"}
    else:
        weight = 1 + (shares - 2) * 9999 // 262142  # as the kubelet converts it
        wanted = {"cpu.weight": f"{weight}", "cpu.max": f"{quota} {_PERIOD}", "memory.max": f"{memory}"}
    given = {name: _read((memory_group if name.startswith("memory") else group) / name) for name in wanted}
    said = ", ".join(f"{name} {given[name]}" for name in wanted)
    off = [f"{name} should be {value}" for name, value in wanted.items() if given[name] != value]
    processes = [pid for procs in group.glob("**/cgroup.procs") for pid in _read(procs).split()]
    if not processes:
        off.append("nothing runs there")
    good = "besteffort" in str(group) and not off
    where = f"{len(processes)} processes in {'/'.join(group.parts[-3:])}"
    return Verdict(good, "; ".join([f"{pod['metadata']['name']}: {said}, {where}", *off]))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        return f"unreadable ({error.strerror})"


def _amounts(pod: dict[str, Any], kind: str) -> dict[str, Quantity]:
    """Of the first container."""
    given = (pod["spec"]["containers"][0].get("resources") or {}).get(kind) or {}
    return {name: Quantity(str(amount)) for name, amount in given.items()}
