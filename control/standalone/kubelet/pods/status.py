"""A pod's API status, computed from the states of its containers; pure.

`ContainerRecord` is the kubelet's state of one container across its restarts. The pod worker changes it;
this module only reads it. The rules are kubelet's: the phase follows from container states and restart policy, and a
condition's transition time changes only with its status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.standalone.kubelet.pods.spec import ContainerSpec, ParsedPod, qos_class
from control.standalone.kubelet.runtimes.runtime import RuntimeContainer
from control.standalone.objectmeta import timestamp

CONTAINER_ID_SCHEME = "containerd://"
"""Of the four schemes that readers of pod statuses know (spec 03 §1.2), the one that fits the cgroup names."""


@dataclass(slots=True)
class ContainerRecord:
    """One container of a pod. `current` is the newest attempt, `previous` the one before it."""

    current: RuntimeContainer | None = None
    previous: RuntimeContainer | None = None
    restarts: int = 0
    waiting: tuple[str, str] | None = None
    """(reason, message) while the container should run but does not."""
    ready: bool = False
    started: bool = False
    ended_at: float = 0.0
    """Monotonic time at which the end of `current` was observed."""
    kill: str | None = None
    """Why the running attempt must be stopped (a failed liveness or startup probe)."""
    kill_grace: int | None = None

    @property
    def running(self) -> bool:
        return self.current is not None and self.current.running

    @property
    def exit_code(self) -> int | None:
        return None if self.current is None else self.current.exit_code


OWNED_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")

Records = Mapping[str, ContainerRecord]


@dataclass(frozen=True, slots=True)
class PhaseDecision:
    """A phase that the kubelet sets regardless of the containers: rejected, deadline exceeded, invalid spec."""

    reason: str
    message: str
    phase: str = "Failed"


def _ns(ns: int) -> str:
    return timestamp(ns // 10**9)


def _terminated(info: RuntimeContainer) -> dict[str, Any]:
    out: dict[str, Any] = {
        "exitCode": info.exit_code,
        "reason": info.reason,
        "startedAt": _ns(info.started_at),
        "finishedAt": _ns(info.finished_at or info.started_at),
        "containerID": CONTAINER_ID_SCHEME + info.id,
    }
    if info.message:
        out["message"] = info.message
    if info.signal:
        out["signal"] = info.signal
    return {"terminated": out}


def container_status(spec: ContainerSpec, record: ContainerRecord, default_wait: str) -> dict[str, Any]:
    current, previous = record.current, record.previous
    state: dict[str, Any]
    last: dict[str, Any] = {}
    if current is not None and current.running:
        state = {"running": {"startedAt": _ns(current.started_at)}}
        last = _terminated(previous) if previous is not None else {}
    elif record.waiting is not None or current is None:
        reason, message = record.waiting or (default_wait, "")
        state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        ended = current or previous
        last = _terminated(ended) if ended is not None else {}
    else:
        state = _terminated(current)
        last = _terminated(previous) if previous is not None else {}
    shown = current or previous
    return {
        "name": spec.name,
        "image": spec.image,
        "imageID": "",
        **({"containerID": CONTAINER_ID_SCHEME + shown.id} if shown is not None else {}),
        "ready": record.ready,
        "started": record.running and record.started,
        "restartCount": record.restarts,
        "state": state,
        "lastState": last,
    }


def initialized(pod: ParsedPod, records: Records) -> bool:
    """Whether every init container has completed and every sidecar has started."""
    return all(records[c.name].started if c.sidecar else records[c.name].exit_code == 0 for c in pod.init_containers)


def phase(pod: ParsedPod, records: Records, final: bool = False) -> str:
    """`final`: no container will be started again, regardless of the restart policy."""
    for spec in pod.init_containers:
        record = records[spec.name]
        if not spec.sidecar and record.exit_code not in (None, 0) and (final or pod.restart_policy == "Never"):
            return "Failed"
    mains = [records[c.name] for c in pod.containers]
    if not final and not initialized(pod, records) and all(r.current is None for r in mains):
        return "Pending"
    if any(r.current is None and r.previous is None for r in mains):
        return "Failed" if final else "Pending"
    if any(r.running for r in mains):
        return "Running"
    if not final and pod.restart_policy == "Always":
        return "Running"
    codes = [r.exit_code for r in mains]
    if all(code == 0 for code in codes):
        return "Succeeded"
    return "Failed" if final or pod.restart_policy == "Never" else "Running"


def finished(pod: ParsedPod, records: Records) -> bool:
    """Whether the pod has completed by itself: no container will run again."""
    return phase(pod, records) in ("Succeeded", "Failed")


def _condition(kind: str, ok: bool, reason: str = "", message: str = "") -> dict[str, Any]:
    out = {"type": kind, "status": "True" if ok else "False"}
    if reason:
        out["reason"] = reason
    if message:
        out["message"] = message
    return out


def _unready(kind: str, names: Iterable[str], what: str) -> tuple[str, str]:
    return kind, f"containers with {what} status: [{' '.join(names)}]"


def conditions(
    pod: ParsedPod,
    records: Records,
    now_phase: str,
    sandbox: bool,
    old: Sequence[Mapping[str, Any]],
    now: float,
) -> list[dict[str, Any]]:
    """The kubelet's conditions; `old` are the API's, for transition times and readiness gates."""
    old_by_type = {str(c.get("type")): c for c in old}
    ended = now_phase in ("Succeeded", "Failed")
    done = initialized(pod, records) or any(records[c.name].current is not None for c in pod.containers)
    waiting_inits = [
        c.name
        for c in pod.init_containers
        if not (records[c.name].started if c.sidecar else records[c.name].exit_code == 0)
    ]
    unready = [c.name for c in pod.containers if not records[c.name].ready]
    unready += [c.name for c in pod.init_containers if c.sidecar and not records[c.name].ready]
    if now_phase == "Succeeded":
        why = ("PodCompleted", "")
    elif now_phase == "Failed":
        why = ("PodFailed", "")
    else:
        why = _unready("ContainersNotReady", unready, "unready")
    containers_ready = not ended and not unready
    gates = [g for g in pod.readiness_gates if old_by_type.get(g, {}).get("status") != "True"]
    if containers_ready and gates:
        ready = _condition(
            "Ready",
            False,
            "ReadinessGatesNotReady",
            "".join(f'corresponding condition of pod readiness gate "{g}" does not exist. ' for g in gates).strip(),
        )
    else:
        ready = _condition("Ready", containers_ready, *(() if containers_ready else why))
    new = [
        _condition("PodReadyToStartContainers", sandbox and not ended),
        _condition(
            "Initialized",
            done,
            *(
                ()
                if done and now_phase != "Succeeded"
                else ("PodCompleted", "")
                if done
                else _unready("ContainersNotInitialized", waiting_inits, "incomplete")
            ),
        ),
        ready,
        _condition("ContainersReady", containers_ready, *(() if containers_ready else why)),
        {**old_by_type.get("PodScheduled", {}), **_condition("PodScheduled", True)},
    ]
    for condition in new:
        old_condition = old_by_type.get(condition["type"], {})
        same = old_condition.get("status") == condition["status"] and old_condition.get("lastTransitionTime")
        condition["lastTransitionTime"] = old_condition["lastTransitionTime"] if same else timestamp(now)
        condition.setdefault("lastProbeTime", None)
    return new


def pod_status(
    pod: ParsedPod,
    records: Records,
    *,
    host_ip: str,
    start_time: float,
    sandbox: bool,
    now: float,
    old: Sequence[Mapping[str, Any]],
    final: bool = False,
    decision: PhaseDecision | None = None,
) -> dict[str, Any]:
    """The complete `status` of this kubelet, without the keys and conditions of other components."""
    now_phase = decision.phase if decision is not None else phase(pod, records, final)
    init_done = initialized(pod, records)
    out: dict[str, Any] = {
        "phase": now_phase,
        "qosClass": qos_class(pod).value,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": timestamp(start_time),
        "conditions": conditions(pod, records, now_phase, sandbox, old, now),
        "containerStatuses": [
            container_status(c, records[c.name], "ContainerCreating" if init_done else "PodInitializing")
            for c in pod.containers
        ],
    }
    if sandbox or any(r.current is not None for r in records.values()):
        out |= {"podIP": host_ip, "podIPs": [{"ip": host_ip}]}
    if pod.init_containers:
        out["initContainerStatuses"] = [
            container_status(c, records[c.name], "PodInitializing") for c in pod.init_containers
        ]
        for status, spec in zip(out["initContainerStatuses"], pod.init_containers, strict=True):
            if not spec.sidecar:
                status["ready"] = records[spec.name].exit_code == 0
    if pod.ephemeral_containers:
        out["ephemeralContainerStatuses"] = [
            {**container_status(c, records[c.name], "ContainerCreating"), "ready": False}
            for c in pod.ephemeral_containers
        ]
    if decision is not None:
        out |= {"reason": decision.reason, "message": decision.message}
    return out


def failed_status(decision: PhaseDecision, host_ip: str, start_time: float) -> dict[str, Any]:
    """Status of a pod without any container: rejected or invalid."""
    return {
        "phase": decision.phase,
        "reason": decision.reason,
        "message": decision.message,
        "hostIP": host_ip,
        "startTime": timestamp(start_time),
    }
