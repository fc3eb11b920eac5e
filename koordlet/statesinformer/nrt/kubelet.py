"""The node's CPUs according to the kubelet's configuration and its CPU manager's checkpoint (spec 02 §3.8, step 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from koordlet.api.annotations.topology import CPUInfo, KubeletCPUManagerPolicy, PodCPUAlloc
from koordlet.api.cpus import CPUListError, format_cpus, parse_cpus
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.encoding.wire import WireError, convert, decode
from koordlet.api.qos import BE, LS, raw_qos
from koordlet.statesinformer.nrt.cpus import CPUs, NotEnoughCPUs, take_by_topology
from koordlet.statesinformer.pods.model import PodMeta

STATIC = "static"
STATE_FILE = "cpu_manager_state"
NO_POLICY = "None"
_POLICIES = {"single-numa-node": "SingleNUMANode", "restricted": "Restricted", "best-effort": "BestEffort"}
_SCOPES = {"container": "ContainerLevel", "pod": "PodLevel"}


class KubeletStateError(RuntimeError):
    """The CPU manager's state file cannot be read; names the file."""


class ReservedCPUError(ValueError):
    """The reserved CPUs in the kubelet's configuration are missing or invalid; names the field."""


class KubeletConfig(Frozen):
    """The CPU-related fields of a KubeletConfiguration. Others may have any type (that of `logging` changed once)."""

    cpu_manager_policy: str = ""
    cpu_manager_policy_options: dict[str, str] = msgspec.field(default_factory=dict)
    topology_manager_policy: str = ""
    topology_manager_scope: str = ""
    reserved_system_cpus: str = msgspec.field(default="", name="reservedSystemCPUs")
    kube_reserved: dict[str, str] = msgspec.field(default_factory=dict)
    system_reserved: dict[str, str] = msgspec.field(default_factory=dict)


def kubelet_config(configz: Mapping[str, object]) -> KubeletConfig:
    """Decode the `kubeletconfig` of /configz. Raises WireError naming the field."""
    return convert(configz, KubeletConfig, where="kubelet /configz: kubeletconfig")


def topology_policy(config: KubeletConfig | None) -> str:
    """The element of `topologyPolicies`: policy and scope, or `None` for a policy that does not align or is unknown."""
    policy = _POLICIES.get(config.topology_manager_policy) if config else None
    scope = _SCOPES.get(config.topology_manager_scope or "container") if config else None
    return f"{policy}{scope}" if policy and scope else NO_POLICY


def reserved_cpus(config: KubeletConfig, cpus: Sequence[CPUInfo]) -> CPUs:
    """The CPUs that a kubelet with the static policy assigns to no container. Raises ReservedCPUError."""
    everything = frozenset(cpu.id for cpu in cpus)
    if config.reserved_system_cpus:
        try:
            listed = parse_cpus(config.reserved_system_cpus)
        except CPUListError as error:
            raise ReservedCPUError(f"reservedSystemCPUs: {error}") from error
        if not listed <= everything:
            raise ReservedCPUError(f"reservedSystemCPUs: this machine has no CPUs {format_cpus(listed - everything)}")
        return listed
    total = ZERO
    for name, amounts in (("kubeReserved", config.kube_reserved), ("systemReserved", config.system_reserved)):
        try:
            total += Quantity(amounts.get("cpu", "0"))
        except ValueError as error:
            raise ReservedCPUError(f"{name}.cpu: {error}") from error
    if total <= ZERO:
        raise ReservedCPUError("the policy is static but kubeReserved.cpu + systemReserved.cpu is not greater than 0")
    try:
        return take_by_topology(cpus, everything, total.value())
    except NotEnoughCPUs as error:
        raise ReservedCPUError(f"kubeReserved.cpu + systemReserved.cpu: {error}") from error


def cpu_manager_policy(config: KubeletConfig | None, reserved: CPUs) -> KubeletCPUManagerPolicy:
    """The annotation; empty if the kubelet's configuration is not queried."""
    if config is None:
        return KubeletCPUManagerPolicy()
    return KubeletCPUManagerPolicy(
        policy=config.cpu_manager_policy,
        options=config.cpu_manager_policy_options,
        reserved_cpus=format_cpus(reserved),
    )


class _State(Frozen):
    entries: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


def read_cpu_manager_state(directory: Path) -> Mapping[str, Mapping[str, str]]:
    """Pod UID -> container -> CPU list, from the kubelet's checkpoint; empty if the file is missing or empty. Raises
    KubeletStateError."""
    path = directory / STATE_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KubeletStateError(f"{path}: {error.strerror}") from error
    if not text.strip():
        return {}
    try:
        state: _State = decode(text, _State, where=str(path))
    except WireError as error:
        raise KubeletStateError(str(error)) from error
    return state.entries


def pinned_by_kubelet(state: Mapping[str, Mapping[str, str]], pods: Iterable[PodMeta]) -> list[PodCPUAlloc]:
    """CPUs that the kubelet assigned to pods, by UID. Omitted: LS and BE pods, pods whose CPUs koordlet manages, CPU
    lists that cannot be parsed, and pods without any CPU list. The checkpoint may have pods that koordlet does not list
    yet or no longer."""
    metas = {meta.uid: meta for meta in pods}
    allocs = []
    for uid, containers in sorted(state.items()):
        meta = metas.get(uid)
        if meta is not None and meta.pod is not None:
            qos = raw_qos(meta.pod.metadata.labels)
            if qos in (LS, BE) or meta.cpu_allocation.cpus:
                continue
        cpus = frozenset().union(*(_parse_or_empty(text) for text in containers.values()))
        if cpus:
            allocs.append(
                PodCPUAlloc(
                    namespace=meta.namespace if meta else "",
                    name=meta.name if meta else "",
                    uid=uid,
                    cpuset=format_cpus(cpus),
                    managed_by_kubelet=True,
                )
            )
    return allocs


def _parse_or_empty(text: str) -> CPUs:
    try:
        return parse_cpus(text)
    except CPUListError:
        return frozenset()
