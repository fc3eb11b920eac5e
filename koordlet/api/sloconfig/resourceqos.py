"""`resource-qos-config`: cpu, memory, block I/O, cache and network quality per QoS class.

Part of NodeSLO as `resourceQOSStrategy`; `CPUQOS` and `PodMemoryQOS` are also pod annotations
(spec 01 §6.5.3, §5.1).
"""

from typing import Annotated, Final

import msgspec

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.wire import IntOrString

CPU_POLICY_GROUP_IDENTITY: Final = "groupIdentity"
CPU_POLICY_CORE_SCHED: Final = "coreSched"
NET_POLICY_TC: Final = "tc"
NET_POLICY_TERWAY: Final = "terway-qos"

BLOCK_DEVICE: Final = "device"
BLOCK_VOLUME_GROUP: Final = "volumegroup"
BLOCK_POD_VOLUME: Final = "podvolume"


class CPUQOS(Frozen):
    """Cpu quality of a class, or of one pod (annotation `koordinator.sh/cpuQOS`)."""

    enable: Annotated[bool | None, doc("Whether cpu quality is applied.")] = None
    group_identity: Annotated[
        int | None, doc("Group identity (bvt) of the pods, -1 to 2; used with policy groupIdentity.")
    ] = None
    sched_idle: Annotated[
        int | None, doc("1 puts the pods into SCHED_IDLE (cpu.idle); used with policy coreSched.")
    ] = None
    core_expeller: Annotated[
        bool | None, doc("Whether idle pods must not run on sibling threads of the pods; used with coreSched.")
    ] = None


class _MemoryValues(Frozen):
    """The memory fields that classes and pods share."""

    min_limit_percent: Annotated[int | None, doc("memory.min in percent of the memory request.", minimum=0)] = None
    low_limit_percent: Annotated[int | None, doc("memory.low in percent of the memory request.", minimum=0)] = None
    throttling_percent: Annotated[
        int | None, doc("memory.high: request plus this percentage of limit minus request.", minimum=0)
    ] = None
    wmark_ratio: Annotated[
        int | None, doc("Memory usage in percent at which background reclaim starts.", minimum=0, maximum=100)
    ] = None
    wmark_scale_permill: Annotated[
        int | None, doc("Distance below, in permille, at which background reclaim stops.", minimum=1, maximum=1000)
    ] = None
    wmark_min_adj: Annotated[
        int | None, doc("Shift of the global minimum watermark for these pods.", minimum=-25, maximum=50)
    ] = None
    page_cache_enable: Annotated[bool | None, doc("Whether the page cache is limited.")] = None
    page_cache_limit_percent: Annotated[
        int | None, doc("Page cache limit in percent of the memory limit.", minimum=0, maximum=100)
    ] = None
    page_cache_limit_size: Annotated[
        int | None, doc("Page cache limit in bytes; takes precedence over the percentage.")
    ] = None
    page_cache_reclaim_sync: Annotated[
        bool | None, doc("Whether page cache above the limit is reclaimed by the task itself.")
    ] = None
    priority_enable: Annotated[int | None, doc("1: `priority` determines the order of OOM kills.")] = None
    priority: Annotated[int | None, doc("OOM priority, 0 to 12.")] = None
    oom_kill_group: Annotated[int | None, doc("1 kills the whole group on OOM.")] = None


class MemoryQOS(_MemoryValues):
    """Memory quality of a class. `enable` is the last field; its position is not relevant in an object."""

    enable: Annotated[bool | None, doc("Whether memory quality is applied.")] = None


class PodMemoryQOS(_MemoryValues):
    """Memory quality of one pod (annotation `koordinator.sh/memoryQOS`, which only users write)."""

    policy: Annotated[str, doc("default (also empty), none or auto.")] = ""


class IOConfig(Frozen):
    """Limits, weight and cost model of one block device or volume; 0 disables a limit."""

    read_iops: Annotated[int | None, doc("Read operations per second.", minimum=0)] = msgspec.field(
        default=None, name="readIOPS"
    )
    write_iops: Annotated[int | None, doc("Write operations per second.", minimum=0)] = msgspec.field(
        default=None, name="writeIOPS"
    )
    read_bps: Annotated[int | None, doc("Bytes read per second.", minimum=0)] = msgspec.field(
        default=None, name="readBPS"
    )
    write_bps: Annotated[int | None, doc("Bytes written per second.", minimum=0)] = msgspec.field(
        default=None, name="writeBPS"
    )
    io_weight_percent: Annotated[int | None, doc("Weight, default 100.", minimum=1, maximum=100)] = None
    read_latency: Annotated[int | None, doc("Read latency target in microseconds.")] = None
    write_latency: Annotated[int | None, doc("Write latency target in microseconds.")] = None
    read_latency_percent: Annotated[
        int | None, doc("Percentile of reads that must meet the target.", minimum=0, maximum=100)
    ] = None
    write_latency_percent: Annotated[
        int | None, doc("Percentile of writes that must meet the target.", minimum=0, maximum=100)
    ] = None
    enable_user_model: Annotated[bool | None, doc("Whether the model below replaces the kernel's.")] = None
    model_read_bps: Annotated[int | None, doc("Model: bytes read per second.", minimum=1)] = msgspec.field(
        default=None, name="modelReadBPS"
    )
    model_write_bps: Annotated[int | None, doc("Model: bytes written per second.", minimum=1)] = msgspec.field(
        default=None, name="modelWriteBPS"
    )
    model_read_seq_iops: Annotated[int | None, doc("Model: sequential reads per second.", minimum=1)] = msgspec.field(
        default=None, name="modelReadSeqIOPS"
    )
    model_write_seq_iops: Annotated[int | None, doc("Model: sequential writes per second.", minimum=1)] = msgspec.field(
        default=None, name="modelWriteSeqIOPS"
    )
    model_read_rand_iops: Annotated[int | None, doc("Model: random reads per second.", minimum=1)] = msgspec.field(
        default=None, name="modelReadRandIOPS"
    )
    model_write_rand_iops: Annotated[int | None, doc("Model: random writes per second.", minimum=1)] = msgspec.field(
        default=None, name="modelWriteRandIOPS"
    )


class BlockConfig(Frozen):
    """A block device, volume group or pod volume with its settings."""

    name: Annotated[str, doc("Name of the device, volume group or pod volume.")] = ""
    type: Annotated[str, doc("device, volumegroup or podvolume.")] = ""
    io_cfg: Annotated[IOConfig, doc("Settings of the device.")] = msgspec.field(default_factory=IOConfig)


class PodBlkIOQOS(Frozen):
    """Block I/O of one pod (annotation `koordinator.sh/blkioQOS`)."""

    blocks: Annotated[list[BlockConfig], doc("Settings per device.")] = []


class BlkIOQOS(Frozen):
    """Block I/O of a class."""

    enable: Annotated[bool | None, doc("Whether block I/O settings are applied.")] = None
    blocks: Annotated[list[BlockConfig], doc("Settings per device.")] = []


class ResctrlQOS(Frozen):
    """Last-level cache and memory bandwidth of a class."""

    enable: Annotated[bool | None, doc("Whether cache and bandwidth limits are applied.")] = None
    cat_range_start_percent: Annotated[
        int | None, doc("Start of the cache range in percent of its ways.", minimum=0, maximum=100)
    ] = None
    cat_range_end_percent: Annotated[
        int | None, doc("End of the cache range in percent of its ways.", minimum=0, maximum=100)
    ] = None
    mba_percent: Annotated[int | None, doc("Memory bandwidth in percent.", minimum=0, maximum=100)] = None


class NetworkQOS(Frozen):
    """Network bandwidth of a class: a number is a percentage of the total, a string a quantity in bit/s."""

    enable: Annotated[bool | None, doc("Whether bandwidth settings are applied.")] = None
    ingress_request: Annotated[IntOrString | None, doc("Guaranteed ingress bandwidth.", default=0)] = None
    ingress_limit: Annotated[IntOrString | None, doc("Highest ingress bandwidth.", default=100)] = None
    egress_request: Annotated[IntOrString | None, doc("Guaranteed egress bandwidth.", default=0)] = None
    egress_limit: Annotated[IntOrString | None, doc("Highest egress bandwidth.", default=100)] = None


class ResourceQOS(Frozen):
    """The quality of service of one class."""

    cpu_qos: Annotated[CPUQOS | None, doc("Cpu quality.")] = msgspec.field(default=None, name="cpuQOS")
    memory_qos: Annotated[MemoryQOS | None, doc("Memory quality.")] = msgspec.field(default=None, name="memoryQOS")
    blkio_qos: Annotated[BlkIOQOS | None, doc("Block I/O.")] = msgspec.field(default=None, name="blkioQOS")
    resctrl_qos: Annotated[ResctrlQOS | None, doc("Last-level cache and memory bandwidth.")] = msgspec.field(
        default=None, name="resctrlQOS"
    )
    network_qos: Annotated[NetworkQOS | None, doc("Network bandwidth.")] = msgspec.field(
        default=None, name="networkQOS"
    )


class ResourceQOSPolicies(Frozen):
    """The mechanisms that implement cpu and network quality."""

    cpu_policy: Annotated[str | None, doc("groupIdentity (default) or coreSched.")] = None
    net_qos_policy: Annotated[str | None, doc("tc (default) or terway-qos.")] = msgspec.field(
        default=None, name="netQOSPolicy"
    )


class ResourceQOSStrategy(Frozen):
    """Quality of every class on one node."""

    policies: Annotated[ResourceQOSPolicies | None, doc("Mechanisms to use.")] = None
    lsr_class: Annotated[ResourceQOS | None, doc("For LSR pods.")] = None
    ls_class: Annotated[ResourceQOS | None, doc("For LS pods.")] = None
    be_class: Annotated[ResourceQOS | None, doc("For BE pods.")] = None
    system_class: Annotated[ResourceQOS | None, doc("For SYSTEM pods.")] = None
    cgroup_root: Annotated[ResourceQOS | None, doc("For the root of the hierarchy; block I/O only.")] = None
