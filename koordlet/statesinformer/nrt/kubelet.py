"""What the kubelet's configuration and its CPU manager say about the node's CPUs (spec 02 §3.8, step 4). Pure, but
for the one file that is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from koordlet.api.annotations.scheduling import RESOURCE_STATUS
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
    """The kubelet's configuration does not say which CPUs it keeps; names the field."""


class KubeletConfig(Frozen):
    """The fields of a KubeletConfiguration that concern CPUs; all others may have any shape (`logging` did change)."""

    cpu_manager_policy: str = ""
    cpu_manager_policy_options: dict[str, str] = msgspec.field(default_factory=dict)
    topology_manager_policy: str = ""
    topology_manager_scope: str = ""
    reserved_system_cpus: str = msgspec.field(default="", name="reservedSystemCPUs")
    kube_reserved: dict[str, str] = msgspec.field(default_factory=dict)
    system_reserved: dict[str, str] = msgspec.field(default_factory=dict)


def kubelet_config(given: Mapping[str, object]) -> KubeletConfig:
    """The `kubeletconfig` of /configz. Raises WireError naming the field."""
    return convert(given, KubeletConfig, where="kubelet /configz: kubeletconfig")


def topology_policy(config: KubeletConfig | None) -> str:
    """The element of `topologyPolicies`: scope x policy, `None` for what Kubernetes would not align or we not know."""
    policy = _POLICIES.get(config.topology_manager_policy) if config else None
    scope = _SCOPES.get(config.topology_manager_scope or "container") if config else None
    return f"{policy}{scope}" if policy and scope else NO_POLICY


def reserved_cpus(config: KubeletConfig, cpus: Sequence[CPUInfo]) -> CPUs:
    """The CPUs that a kubelet with the static policy gives to nobody. Raises ReservedCPUError."""
    everything = frozenset(cpu.id for cpu in cpus)
    if config.reserved_system_cpus:
        try:
            listed = parse_cpus(config.reserved_system_cpus)
        except CPUListError as error:
            raise ReservedCPUError(f"reservedSystemCPUs: {error}") from error
        if not listed <= everything:
            raise ReservedCPUError(f"reservedSystemCPUs: {format_cpus(listed - everything)} is not on this machine")
        return listed
    total = ZERO
    for name, amounts in (("kubeReserved", config.kube_reserved), ("systemReserved", config.system_reserved)):
        try:
            total += Quantity(amounts.get("cpu", "0"))
        except ValueError as error:
            raise ReservedCPUError(f"{name}.cpu: {error}") from error
    if total <= ZERO:
        raise ReservedCPUError("the policy is static but kubeReserved.cpu + systemReserved.cpu is not above 0")
    try:
        return take_by_topology(cpus, everything, total.value())
    except NotEnoughCPUs as error:
        raise ReservedCPUError(f"kubeReserved.cpu + systemReserved.cpu: {error}") from error


def cpu_manager_policy(config: KubeletConfig | None, reserved: CPUs) -> KubeletCPUManagerPolicy:
    """The annotation; empty when the kubelet was not asked."""
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
    """Pod uid -> container -> CPU list, from the kubelet's checkpoint; nothing when there is none or it is empty.
    Raises KubeletStateError."""
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
    """CPUs that the kubelet itself gave to pods, by uid. Left out: LS and BE pods, and pods whose CPUs koordlet
    manages. CPU lists that cannot be parsed are passed over, as is a pod without any; the kubelet knows pods that are
    not here (yet, or any more)."""
    known = {meta.uid: meta for meta in pods}
    allocs = []
    for uid, containers in sorted(state.items()):
        meta = known.get(uid)
        if meta is not None and meta.pod is not None:
            labelled = raw_qos(meta.pod.metadata.labels)
            if labelled in (LS, BE) or _managed_by_koordlet(meta.pod.metadata.annotations):
                continue
        cpus = frozenset().union(*(_lenient(text) for text in containers.values()))
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


def _managed_by_koordlet(annotations: Mapping[str, str]) -> bool:
    try:
        return bool(RESOURCE_STATUS.get(annotations).cpuset)
    except WireError:
        return False


def _lenient(text: str) -> CPUs:
    try:
        return parse_cpus(text)
    except CPUListError:
        return frozenset()
