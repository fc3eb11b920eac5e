"""Checks of the demo's pod that becomes best effort through a ClusterColocationProfile. Pure, except that they read
cgroup files.

`offers_batch_resources` checks the node, `admitted` the stored pod, `placed` the kernel's files: the pod's cgroup is
below the best-effort one, with the weight and the limits of its batch resources.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from control.ctl.demo.judge import DemoResult
from koordlet.api import names
from koordlet.api.encoding.quantity import ZERO, Quantity

CPU, MEMORY = names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY
RECLAIM_PERCENT = 300
"""cpuReclaimThresholdPercent in the demo: other work on this machine reduces the overcommitted amount."""
_PERIOD = 100_000


def strategy(present: str) -> str:
    """The ConfigMap's colocation-config with the demo's CPU share."""
    return json.dumps({**json.loads(present or "{}"), "cpuReclaimThresholdPercent": RECLAIM_PERCENT})


def offers_batch_resources(node: dict[str, Any]) -> DemoResult:
    """Whether the node offers the batch resources that the pod requests."""
    allocatable = node["status"].get("allocatable") or {}
    amounts = {name: Quantity(str(allocatable.get(name, "0"))) for name in (CPU, MEMORY)}
    text = ", ".join(f"{name} {amount}" for name, amount in amounts.items())
    return DemoResult(amounts[CPU].value() >= 200 and amounts[MEMORY] >= Quantity("64Mi"), f"the node offers {text}")


def admitted(pod: dict[str, Any]) -> DemoResult:
    """Whether the pod is best effort, of batch priority, with batch resources in place of cpu and memory."""
    meta, spec = pod["metadata"], pod["spec"]
    qos = (meta.get("labels") or {}).get(names.LABEL_QOS_CLASS)
    requests = _amounts(pod, "requests")
    kept = names.ANNOTATION_EXTENDED_RESOURCE_SPEC in (meta.get("annotations") or {})
    classes = (qos, spec.get("priorityClassName"), spec.get("priority"))
    good = classes == ("BE", "koord-batch", 5000) and sorted(requests) == [CPU, MEMORY] and kept
    text = f"{meta['name']} is {qos or 'of no QoS class'}, priority {spec.get('priority')}"
    return DemoResult(good, f"{text}, requests {', '.join(f'{name} {amount}' for name, amount in requests.items())}")


def scheduled(pod: dict[str, Any], node: str) -> DemoResult:
    """Whether the scheduler named by the profile put the pod on the node and set its condition."""
    spec = pod["spec"]
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
    good = spec.get("schedulerName") == "koord-scheduler" and spec.get("nodeName") == node
    text = f"{pod['metadata']['name']} was put on {spec.get('nodeName')} by {spec.get('schedulerName')}"
    return DemoResult(good and conditions.get("PodScheduled") == "True", text)


def placed(pod: dict[str, Any], group: Path, memory_group: Path) -> DemoResult:
    """Whether the pod's processes run below the best-effort group, with weight, quota and limit of its batch
    resources."""
    requests, limits = _amounts(pod, "requests"), _amounts(pod, "limits")
    shares = max(2, requests.get(CPU, ZERO).value() * 1024 // 1000)
    quota = limits.get(CPU, ZERO).value() * _PERIOD // 1000
    memory = limits.get(MEMORY, ZERO).value()
    if (group / "cpu.shares").exists():
        expected = {"cpu.shares": f"{shares}", "cpu.cfs_quota_us": f"{quota}", "memory.limit_in_bytes": f"{memory}"}
    else:
        weight = 1 + (shares - 2) * 9999 // 262142  # as the kubelet converts it
        expected = {"cpu.weight": f"{weight}", "cpu.max": f"{quota} {_PERIOD}", "memory.max": f"{memory}"}
    actual = {name: _read((memory_group if name.startswith("memory") else group) / name) for name in expected}
    text = ", ".join(f"{name} {actual[name]}" for name in expected)
    off = [f"{name} should be {value}" for name, value in expected.items() if actual[name] != value]
    processes = [pid for procs in group.glob("**/cgroup.procs") for pid in _read(procs).split()]
    if not processes:
        off.append("it has no process")
    good = "besteffort" in str(group) and not off
    where = f"{len(processes)} processes in {'/'.join(group.parts[-3:])}"
    return DemoResult(good, "; ".join([f"{pod['metadata']['name']}: {text}, {where}", *off]))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        return f"unreadable ({error.strerror})"


def _amounts(pod: dict[str, Any], kind: str) -> dict[str, Quantity]:
    """Amounts of the first container."""
    amounts = (pod["spec"]["containers"][0].get("resources") or {}).get(kind) or {}
    return {name: Quantity(str(amount)) for name, amount in amounts.items()}
