"""Block I/O by class and pod: limits, weights and the cost model of devices (spec 03 §3.6). Pure.

Best effort's directory has what `beClass` says, the root what `cgroupRoot` says; LSR and LS have nothing of the kind. A
pod has what its annotation says. A block is a disk or partition, a volume group, or a volume of the pod; a limit is
always on the one disk below it. A target with a block that can't be told is left as it was found, and said.

Stock v1 kernels do not pass limits down: there every container of the directory gets them too, or they would bind
nobody.
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
from koordlet.qosmanager.engine.strategy import Decision, Strategy, Supports
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
"""The first that the kernel has is the one."""

Claims = Callable[[str, str], str | None]
"""(namespace, claim) -> name of its volume; None while unknown."""


class Unresolved(Exception):
    """A block whose disk can't be told; the message says which and why."""


class Disks:
    """Which disk is below a block."""

    def __init__(self, storage: LocalStorage, claims: Claims, kubelet_dir: str) -> None:
        self._storage, self._claims, self._kubelet_dir = storage, claims, kubelet_dir

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
            raise Unresolved(f"{block.type} {block.name!r}: no one disk below it")
        return number

    def _source(self, name: str, pod: PodView | None) -> str:
        """What is mounted for the pod's volume."""
        spec = None if pod is None else pod.meta.pod
        if pod is None or spec is None:
            raise Unresolved(f"podvolume {name!r}: only pods have volumes")
        volume = next((one for one in spec.spec.volumes if one.name == name), None)
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
    """(file, device) -> value for a class or a pod: what is said, 0 for no limit. The defaults of the rest are what a
    device has that nobody spoke of. `weight` is the file for weights."""
    files = {**LIMITS, **({} if weight is None else {weight: "io_weight_percent"})}
    return {(file, device): value for file, field in files.items() if (value := getattr(config, field)) is not None}


def cost(device: str, config: IOConfig) -> dict[tuple[str, str], str]:
    """(file, device) -> line for the root."""
    said = {
        "rpct": _or(config.read_latency_percent, 95), "rlat": _or(config.read_latency, 3000),
        "wpct": _or(config.write_latency_percent, 95), "wlat": _or(config.write_latency, 3000),
    }  # fmt: skip
    qos = f"enable=1 ctrl=user {_words(said)}"
    if not config.enable_user_model:
        return {(QOS, device): qos, (MODEL, device): "ctrl=auto"}
    model = {key: getattr(config, field) for key, field in MODEL_FIELDS.items()}
    missing = [_WIRE[MODEL_FIELDS[key]] for key, value in model.items() if not value]
    if missing:
        raise Unresolved(f"the model of device {device} lacks {', '.join(missing)}")
    return {(QOS, device): qos, (MODEL, device): f"ctrl=user {_words(model)}"}


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _words(values: dict[str, int]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


class BlkIO(Strategy):
    """The strategy. `storage` is what the node's disks are, None while nobody has looked; `flat` says that limits are
    not passed down."""

    name = "blkio"
    gate = "BlkIOReconcile"

    def __init__(
        self,
        storage: Callable[[], LocalStorage | None],
        supports: Supports,
        *,
        claims: Claims = lambda namespace, claim: None,
        kubelet_dir: str = "/var/lib/kubelet",
        flat: bool = False,
    ) -> None:
        self._storage, self._supports, self._claims = storage, supports, claims
        self._kubelet_dir, self._flat = kubelet_dir, flat

    def decide(self, view: NodeView) -> Decision | None:
        """None until the disks are known."""
        strategy, storage = view.slo.resource_qos_strategy, self._storage()
        if strategy is None or storage is None:
            return None
        disks, notes = Disks(storage, self._claims, self._kubelet_dir), list(_ignored(strategy))
        wanted: dict[Setting, DesiredSetting] = {}
        for directories, blocks, pod, about in self._targets(view, strategy):
            try:
                values = self._values(disks, blocks, pod, directories[0], notes)
            except Unresolved as error:
                notes.append(f"{about.name if about is not None else directories[0] or '/'}: {error}")
                continue
            for directory in directories:
                for (file, device), value in values.items():
                    setting = Setting(file, directory, device)
                    wanted[setting] = DesiredSetting(setting, str(value), REASON, about=about)
        return Decision(tuple(wanted.values()), note="; ".join(dict.fromkeys(notes)))

    def _targets(
        self, view: NodeView, strategy: ResourceQOSStrategy
    ) -> Iterator[tuple[Sequence[str], list[BlockConfig], PodView | None, About | None]]:
        """Directories (the first is the one that was meant), their blocks, and whose they are. A pod comes after its
        class: its word counts where containers get both."""
        root, best_effort = _blkio(strategy, "cgroup_root"), _blkio(strategy, "be_class")
        if root is not None and root.enable and root.blocks:
            yield (ROOT,), root.blocks, None, None
        if best_effort is not None and best_effort.enable and best_effort.blocks and view.best_effort_dir:
            below = [pod for pod in view.pods if pod.meta.cgroup_dir.startswith(f"{view.best_effort_dir}/")]
            yield (view.best_effort_dir, *self._containers(below)), best_effort.blocks, None, None
        for pod in view.pods:
            blocks = _asked(pod)
            if blocks:
                directories = (pod.meta.cgroup_dir, *self._containers([pod]))
                yield directories, blocks, pod, about_pod(pod.meta.namespace, pod.meta.name)

    def _containers(self, pods: Iterable[PodView]) -> list[str]:
        if not self._flat:
            return []
        return [one.cgroup_dir for pod in pods if pod.active for one in pod.meta.containers if one.running]

    def _values(
        self, disks: Disks, blocks: list[BlockConfig], pod: PodView | None, directory: str, notes: list[str]
    ) -> dict[tuple[str, str], int | str]:
        found: dict[tuple[str, str], int | str] = {}
        weight = next((file for file in WEIGHTS if self._supports(file, directory)), None)
        for block in blocks:
            device = disks.number(block, pod)
            if directory == ROOT:
                if not self._supports(QOS, ROOT):
                    raise Unresolved("this kernel has no I/O cost controller here")
                found |= cost(device, block.io_cfg)
                continue
            found |= limits(device, block.io_cfg, weight)
            if weight is None and block.io_cfg.io_weight_percent not in (None, 100):
                notes.append("ioWeightPercent: this kernel has no weights of devices here")
        return found


def _blkio(strategy: ResourceQOSStrategy, name: str) -> BlkIOQOS | None:
    found = getattr(strategy, name)
    return None if found is None else found.blkio_qos


def _ignored(strategy: ResourceQOSStrategy) -> Iterator[str]:
    for name in ("lsr_class", "ls_class"):
        found = _blkio(strategy, name)
        if found is not None and found.enable and found.blocks:
            yield f"{name.removesuffix('_class').upper()}: block I/O is for BE and the root only"


def _asked(pod: PodView) -> list[BlockConfig]:
    """What the annotation of a running pod with a class asks for; a malformed one asks for nothing."""
    spec = pod.meta.pod
    if spec is None or not pod.raw_qos or spec.status.phase != "Running":
        return []
    if not spec.metadata.annotations.get(ANNOTATION_BLKIO_QOS):
        return []
    try:
        asked = BLKIO_QOS.get(spec.metadata.annotations)
    except WireError as error:
        log.once(f"{pod.meta.uid}:{error}", "annotation ignored", pod=f"{pod.meta.namespace}/{pod.meta.name}",
                 error=str(error))  # fmt: skip
        return []
    return [] if asked is None else asked.blocks
