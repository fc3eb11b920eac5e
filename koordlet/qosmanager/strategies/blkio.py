"""Block I/O by class and pod: limits, weights and the cost model of devices (spec 03 §3.6). Pure.

Best effort's directory gets the values of `beClass`, the root those of `cgroupRoot`; LSR and LS have none. A pod gets
the values of its annotation. A block is a disk or partition, a volume group, or a volume of the pod; a limit always
applies to the one disk below it. A target with a block that cannot be resolved is not modified, and reported.

Stock v1 kernels do not apply a parent's limits to its children: there, every container of the directory gets them too,
otherwise they would have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from koordlet.api.annotations.pod import BLKIO_QOS
from koordlet.api.encoding.wire import WireError
from koordlet.api.names import ANNOTATION_BLKIO_QOS
from koordlet.api.sloconfig.resourceqos import (
    BLOCK_DEVICE,
    BLOCK_POD_VOLUME,
    BLOCK_VOLUME_GROUP,
    BlkIOQOS,
    BlockConfig,
    IOConfig,
    ResourceQOSStrategy,
)
from koordlet.app.logging import get_logger
from koordlet.audit import About
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy, Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.blockio import BFQ_WEIGHT, MODEL, QOS, WEIGHT
from koordlet.system.devices.storage import LocalStorage

log = get_logger(__name__)

REASON = "UpdateBlkIO"
ROOT = ""
LIMITS = {
    "blkio.throttle.read_iops_device": "read_iops",
    "blkio.throttle.read_bps_device": "read_bps",
    "blkio.throttle.write_iops_device": "write_iops",
    "blkio.throttle.write_bps_device": "write_bps",
}
MODEL_FIELDS = {
    "rbps": "model_read_bps", "rseqiops": "model_read_seq_iops", "rrandiops": "model_read_rand_iops",
    "wbps": "model_write_bps", "wseqiops": "model_write_seq_iops", "wrandiops": "model_write_rand_iops",
}  # fmt: skip
_WIRE = {field.name: field.encode_name for field in msgspec.structs.fields(IOConfig)}
WEIGHTS = (WEIGHT, BFQ_WEIGHT)
"""The first one that the kernel has is used."""

Claims = Callable[[str, str], str | None]
"""(namespace, claim) -> name of its volume; None while unknown."""


class Unresolved(Exception):
    """The disk of a block is unknown; the message has the block and the reason."""


class BlockResolver:
    """Finds the disk below a block."""

    def __init__(self, storage: LocalStorage, claims: Claims, kubelet_dir: str) -> None:
        self._storage = storage
        self._claims = claims
        self._kubelet_dir = kubelet_dir

    def number(self, block: BlockConfig, pod: PodView | None) -> str:
        """`MAJ:MIN`. Raises Unresolved."""
        if block.type == BLOCK_DEVICE:
            disk = self._storage.disk_of(block.name)
        elif block.type == BLOCK_VOLUME_GROUP:
            disk = self._storage.vg_disk.get(block.name)
        elif block.type == BLOCK_POD_VOLUME:
            disk = self._storage.disk_of(self._source(block.name, pod))
        else:
            raise Unresolved(f"block {block.name!r}: unknown type {block.type!r}")
        number = self._storage.disk_numbers.get(disk or "")
        if number is None:
            raise Unresolved(f"{block.type} {block.name!r}: no single disk below it")
        return number

    def _source(self, name: str, pod: PodView | None) -> str:
        """The mounted source of the pod's volume."""
        spec = None if pod is None else pod.meta.pod
        if pod is None or spec is None:
            raise Unresolved(f"podvolume {name!r}: only pods have volumes")
        volume = next((volume for volume in spec.spec.volumes if volume.name == name), None)
        if volume is None:
            raise Unresolved(f"podvolume {name!r}: the pod has no such volume")
        if volume.persistent_volume_claim is not None:
            claim = volume.persistent_volume_claim.claim_name
            mounted = self._claims(pod.meta.namespace, claim)
            if mounted is None:
                raise Unresolved(f"podvolume {name!r}: the volume of claim {claim!r} is not known yet")
        elif volume.csi is not None:
            mounted = name
        else:
            raise Unresolved(f"podvolume {name!r}: neither a claim nor a CSI volume")
        point = f"{self._kubelet_dir}/pods/{pod.meta.uid}/volumes/kubernetes.io~csi/{mounted}/mount"
        return self._storage.mount_source.get(point, "")


def limits(device: str, config: IOConfig, weight: str | None) -> dict[tuple[str, str], int]:
    """(file, device) -> value for a class or a pod, 0 for no limit. Unset fields are left out: the kernel's defaults
    are those of a device without settings. `weight` is the file for weights."""
    files = {**LIMITS, **({} if weight is None else {weight: "io_weight_percent"})}
    return {(file, device): value for file, field in files.items() if (value := getattr(config, field)) is not None}


def cost(device: str, config: IOConfig) -> dict[tuple[str, str], str]:
    """(file, device) -> line for the root."""
    latency = {
        "rpct": _or(config.read_latency_percent, 95), "rlat": _or(config.read_latency, 3000),
        "wpct": _or(config.write_latency_percent, 95), "wlat": _or(config.write_latency, 3000),
    }  # fmt: skip
    qos = f"enable=1 ctrl=user {_pairs(latency)}"
    if not config.enable_user_model:
        return {(QOS, device): qos, (MODEL, device): "ctrl=auto"}
    model = {key: getattr(config, field) for key, field in MODEL_FIELDS.items()}
    missing = [_WIRE[MODEL_FIELDS[key]] for key, value in model.items() if not value]
    if missing:
        raise Unresolved(f"the model of device {device} lacks {', '.join(missing)}")
    return {(QOS, device): qos, (MODEL, device): f"ctrl=user {_pairs(model)}"}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _pairs(values: dict[str, int]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


class BlkIO(Strategy):
    """The strategy. `storage` returns the node's disks, None until they were collected; `flat`: the kernel does not
    apply a parent's limits to its children."""

    name = "blkio"

    def __init__(
        self,
        storage: Callable[[], LocalStorage | None],
        supports: Supports,
        *,
        claims: Claims = lambda namespace, claim: None,
        kubelet_dir: str = "/var/lib/kubelet",
        flat: bool = False,
    ) -> None:
        self._storage = storage
        self._supports = supports
        self._claims = claims
        self._kubelet_dir = kubelet_dir
        self._flat = flat

    def decide(self, view: NodeView) -> QoSDecision | None:
        """None until the disks are known."""
        strategy, storage = view.slo.resource_qos_strategy, self._storage()
        if strategy is None or storage is None:
            return None
        resolver = BlockResolver(storage, self._claims, self._kubelet_dir)
        notes = list(_ignored(strategy))
        desired: dict[Setting, DesiredSetting] = {}
        for directories, blocks, pod, about in self._targets(view, strategy):
            try:
                values = self._values(resolver, blocks, pod, directories[0], notes)
            except Unresolved as error:
                notes.append(f"{about.name if about is not None else directories[0] or '/'}: {error}")
                continue
            for directory in directories:
                for (file, device), value in values.items():
                    setting = Setting(file, directory, device)
                    desired[setting] = DesiredSetting(setting, str(value), REASON, about=about)
        return QoSDecision(tuple(desired.values()), note="; ".join(dict.fromkeys(notes)))

    def _targets(
        self, view: NodeView, strategy: ResourceQOSStrategy
    ) -> Iterator[tuple[Sequence[str], list[BlockConfig], PodView | None, About | None]]:
        """(directories, blocks, pod, whom they are about); the first directory is the configured one. A pod comes after
        its class: its values win where containers get both."""
        root, best_effort = _blkio(strategy, "cgroup_root"), _blkio(strategy, "be_class")
        if root is not None and root.enable and root.blocks:
            yield (ROOT,), root.blocks, None, None
        if best_effort is not None and best_effort.enable and best_effort.blocks and view.best_effort_dir:
            below = [pod for pod in view.pods if pod.meta.cgroup_dir.startswith(f"{view.best_effort_dir}/")]
            yield (view.best_effort_dir, *self._containers(below)), best_effort.blocks, None, None
        for pod in view.pods:
            blocks = _annotated(pod)
            if blocks:
                directories = (pod.meta.cgroup_dir, *self._containers([pod]))
                yield directories, blocks, pod, about_pod(pod.meta.namespace, pod.meta.name)

    def _containers(self, pods: Iterable[PodView]) -> list[str]:
        if not self._flat:
            return []
        return [
            container.cgroup_dir for pod in pods if pod.active for container in pod.meta.containers if container.running
        ]

    def _values(
        self, resolver: BlockResolver, blocks: list[BlockConfig], pod: PodView | None, directory: str, notes: list[str]
    ) -> dict[tuple[str, str], int | str]:
        values: dict[tuple[str, str], int | str] = {}
        weight = next((file for file in WEIGHTS if self._supports(file, directory)), None)
        for block in blocks:
            device = resolver.number(block, pod)
            if directory == ROOT:
                if not self._supports(QOS, ROOT):
                    raise Unresolved("this kernel has no I/O cost controller here")
                values |= cost(device, block.io_cfg)
                continue
            values |= limits(device, block.io_cfg, weight)
            if weight is None and block.io_cfg.io_weight_percent not in (None, 100):
                notes.append("ioWeightPercent: this kernel has no weights of devices here")
        return values


def _blkio(strategy: ResourceQOSStrategy, name: str) -> BlkIOQOS | None:
    config = getattr(strategy, name)
    return None if config is None else config.blkio_qos


def _ignored(strategy: ResourceQOSStrategy) -> Iterator[str]:
    for name in ("lsr_class", "ls_class"):
        config = _blkio(strategy, name)
        if config is not None and config.enable and config.blocks:
            yield f"{name.removesuffix('_class').upper()}: block I/O is for BE and the root only"


def _annotated(pod: PodView) -> list[BlockConfig]:
    """Blocks in the annotation of a running pod with a QoS class; none if it is malformed."""
    spec = pod.meta.pod
    if spec is None or not pod.raw_qos or spec.status.phase != "Running":
        return []
    if not spec.metadata.annotations.get(ANNOTATION_BLKIO_QOS):
        return []
    try:
        config = BLKIO_QOS.get(spec.metadata.annotations)
    except WireError as error:
        name = f"{pod.meta.namespace}/{pod.meta.name}"
        log.once(f"{pod.meta.uid}:{error}", "Malformed annotation ignored", pod=name, error=str(error))
        return []
    return [] if config is None else config.blocks
