"""Every cgroup and node file that koordlet may read or write, as one table (spec 03 §1.3).

A resource is named by its v1 file on both versions. An entry states where the value is, which values may be written,
how they are encoded and when the file counts as supported. None for a version means that the resource does not exist
there. The last block holds files of stock v2 kernels that Koordinator does not know, named by their v2 file.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from koordlet.system.cgroup import codecs
from koordlet.system.cgroup.codecs import Codec
from koordlet.system.cgroup.validators import (
    INT64_MAX,
    BlkioLine,
    ClassId,
    CpuList,
    Range,
    Validator,
)
from koordlet.system.errors import ResourceUnsupported


class Support(enum.Enum):
    ALWAYS = "always"
    KUBE_ROOT = "file exists in the kubepods root cgroup, checked once"
    DIRECTORY = "file exists in the concrete directory, checked on every use"
    HIERARCHY_ROOT = "file exists in the subsystem's root cgroup, checked once"


class FileKind(enum.Enum):
    """FileKind of content. `VALUE` files are converted by `FileSpec.codec`, the others have parsers of their own."""

    VALUE = "one integer"
    CPU_LIST = "CPU list"
    IDS = "one id per line"
    KEY_VALUES = "'key value' lines"
    CPU_TIME = "cumulative CPU time"
    PRESSURE = "pressure stall information"
    NUMA = "memory by NUMA node"
    BLKIO = "one line per device"
    IDLE_PAGES = "kidled page ages"
    COMMAND = "write only"


class ValueBound(enum.Enum):
    """What limits the value of a cgroup file, besides its validator."""

    NONE = "nothing"
    PARENT = "the parent's value: a limit or a protection beyond it is refused or has no effect"
    PARENT_CPUS = "the parent's CPU set: a set outside it is refused"
    OWN_QUOTA = "the quota of the same directory"


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file on one cgroup version. `subsystem` is the v1 hierarchy; on v2 it is empty, except for `net_cls`, which
    has no v2 form and stays a directory below the root. `validator` None accepts every text."""

    file: str
    subsystem: str = ""
    support: Support = Support.ALWAYS
    kind: FileKind = FileKind.VALUE
    codec: Codec = codecs.INTEGER
    validator: Validator | None = None
    read_only: bool = False
    covers_children: bool = False
    """The kernel refuses a value that does not cover those of the child directories (v1 CPU sets)."""


@dataclass(frozen=True, slots=True)
class CgroupResource:
    name: str
    v1: FileSpec | None
    v2: FileSpec | None
    bound: ValueBound = ValueBound.NONE
    suspends: str = ""
    """A resource that the kernel resets when this one becomes 1, refuses while it is 1, and leaves at its default when
    it becomes 0: its value has to be saved before and written again after."""

    def spec(self, version: int) -> FileSpec | None:
        return self.v2 if version == 2 else self.v1


_K, _D, _R = Support.KUBE_ROOT, Support.DIRECTORY, Support.HIERARCHY_ROOT
_BIT = Range(0, 1)
_BYTES = Range(0, INT64_MAX)


def _both(
    name: str,
    subsystem: str,
    *,
    v2_file: str | None = None,
    v1: Support = Support.ALWAYS,
    v2: Support = Support.ALWAYS,
    kind: FileKind = FileKind.VALUE,
    codec: Codec = codecs.INTEGER,
    v2_codec: Codec | None = None,
    valid: Validator | None = None,
    v2_valid: Validator | None = None,
    read_only: bool = False,
    covers_children_on_v1: bool = False,
    bound: ValueBound = ValueBound.NONE,
    suspends: str = "",
) -> CgroupResource:
    return CgroupResource(
        name,
        FileSpec(name, subsystem, v1, kind, codec, valid, read_only, covers_children_on_v1),
        FileSpec(v2_file or name, "", v2, kind, v2_codec or codec, v2_valid or valid, read_only),
        bound,
        suspends,
    )


def _v1_only(name: str, subsystem: str, support: Support, kind: FileKind, valid: Validator | None) -> CgroupResource:
    return CgroupResource(
        name, FileSpec(name, subsystem, support, kind, validator=valid, read_only=valid is None), None
    )


def _v2_only(
    name: str,
    support: Support,
    kind: FileKind = FileKind.VALUE,
    valid: Validator | None = None,
    read_only: bool = False,
) -> CgroupResource:
    return CgroupResource(name, None, FileSpec(name, "", support, kind, codecs.INTEGER, valid, read_only))


_ROWS = (
    _both("cpu.stat", "cpu", kind=FileKind.KEY_VALUES, read_only=True),
    _both(
        "cpu.shares", "cpu", v2_file="cpu.weight", v2_codec=codecs.WEIGHT,
        valid=Range(codecs.SHARES_MIN, codecs.SHARES_MAX), v2_valid=Range(codecs.WEIGHT_MIN, codecs.WEIGHT_MAX),
    ),
    _both("cpu.cfs_quota_us", "cpu", v2_file="cpu.max", v2_codec=codecs.QUOTA, bound=ValueBound.PARENT),
    _both("cpu.cfs_period_us", "cpu", v2_file="cpu.max", v2_codec=codecs.PERIOD),
    _both(
        "cpu.cfs_burst_us", "cpu", v2_file="cpu.max.burst", v1=_D, v2=_K,
        valid=Range(0, 100_000_000), v2_valid=_BYTES, bound=ValueBound.OWN_QUOTA,
    ),
    _both("cpu.bvt_warp_ns", "cpu", v1=_D, v2=_D, valid=Range(-1, 2)),
    _both("cpu.idle", "cpu", v1=_K, v2=_K, valid=_BIT, suspends="cpu.shares"),
    _both("tasks", "cpu", v2_file="cgroup.threads", kind=FileKind.IDS),
    _both("cgroup.procs", "cpu", kind=FileKind.IDS),
    _both(
        "cpuset.cpus", "cpuset", kind=FileKind.CPU_LIST, valid=CpuList(), covers_children_on_v1=True,
        bound=ValueBound.PARENT_CPUS,
    ),
    _v2_only("cpuset.cpus.effective", Support.ALWAYS, FileKind.CPU_LIST, read_only=True),
    _both("cpuacct.stat", "cpuacct", v2_file="cpu.stat", kind=FileKind.KEY_VALUES, read_only=True),
    _both("cpuacct.usage", "cpuacct", v2_file="cpu.stat", kind=FileKind.CPU_TIME, read_only=True),
    *(
        _both(f"{name}.pressure", "cpuacct", v1=_K, v2=_K, kind=FileKind.PRESSURE, read_only=True)
        for name in ("cpu", "memory", "io")
    ),
    _both(
        "memory.limit_in_bytes", "memory", v2_file="memory.max", codec=codecs.V1_LIMIT, v2_codec=codecs.V2_LIMIT
    ),
    _both("memory.usage_in_bytes", "memory", v2_file="memory.current", read_only=True),
    _both("memory.stat", "memory", kind=FileKind.KEY_VALUES, read_only=True),
    _both("memory.numa_stat", "memory", kind=FileKind.NUMA, read_only=True),
    *(
        _both(name, "memory", v1=_K, codec=codecs.MAXIMUM, valid=_BYTES, bound=ValueBound.PARENT)
        for name in ("memory.min", "memory.low", "memory.high")
    ),
    _both("memory.wmark_ratio", "memory", v1=_K, v2=_D, valid=Range(0, 100)),
    _both("memory.wmark_scale_factor", "memory", v1=_K, v2=_D, valid=Range(1, 1000)),
    _both("memory.wmark_min_adj", "memory", v1=_K, v2=_D, valid=Range(-25, 50)),
    _both("memory.priority", "memory", v1=_K, v2=_D, valid=Range(0, 12)),
    _both("memory.use_priority_oom", "memory", v1=_K, v2=_D, valid=_BIT),
    _both("memory.oom.group", "memory", v1=_K, v2=_D, valid=_BIT),
    _v1_only("memory.idle_page_stats", "memory", _K, FileKind.IDLE_PAGES, None),
    _v2_only("memory.pagecache_limit.enable", _D, valid=_BIT),
    _v2_only("memory.pagecache_limit.sync", _D, valid=_BIT),
    _v2_only("memory.pagecache_limit.size", _D, valid=_BYTES),
    *(
        _v1_only(f"blkio.throttle.{way}_{unit}_device", "blkio", _K, FileKind.BLKIO, BlkioLine(2, 0))
        for way in ("read", "write")
        for unit in ("iops", "bps")
    ),
    _v1_only("blkio.cost.weight", "blkio", _K, FileKind.BLKIO, BlkioLine(2, 1, 100)),
    _v1_only("blkio.cost.qos", "blkio", _R, FileKind.BLKIO, BlkioLine(7, 0)),
    _v1_only("blkio.cost.model", "blkio", _R, FileKind.BLKIO, BlkioLine(8, 0)),
    CgroupResource(
        "net_cls.classid",
        FileSpec("net_cls.classid", "net_cls", _K, codec=codecs.CLASSID, validator=ClassId()),
        FileSpec("net_cls.classid", "net_cls", _K, codec=codecs.CLASSID, validator=ClassId()),
    ),
    _v2_only("memory.reclaim", _D, FileKind.COMMAND, _BYTES),
    _v2_only("io.max", _D, FileKind.BLKIO),
    _v2_only("io.weight", _D, FileKind.BLKIO),
    _v2_only("io.stat", _D, FileKind.BLKIO, read_only=True),
    _v2_only("io.cost.qos", _R, FileKind.BLKIO),
    _v2_only("io.cost.model", _R, FileKind.BLKIO),
)  # fmt: skip

RESOURCES: Mapping[str, CgroupResource] = MappingProxyType({row.name: row for row in _ROWS})
SUSPENDED_BY: Mapping[str, str] = MappingProxyType({row.suspends: row.name for row in _ROWS if row.suspends})
"""Resource -> the resource that suspends it."""


def bound(name: str) -> ValueBound:
    """The bound of a resource; NONE for one that is not in the table."""
    resource = RESOURCES.get(name)
    return ValueBound.NONE if resource is None else resource.bound


def lookup(name: str, version: int) -> FileSpec:
    """The file of resource `name`; raises ResourceUnsupported when this version has none."""
    resource = RESOURCES.get(name)
    spec = resource.spec(version) if resource else None
    if spec is None:
        raise ResourceUnsupported(name, f"not registered for cgroup v{version}")
    return spec


class NodeRoot(enum.Enum):
    """The directory of `Roots` that a node-level file is below."""

    PROC_SYS = "proc_sys"
    SYS = "sys"
    VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A node-level file. `VIRTUAL` ones are resources of the executor without a file."""

    name: str
    root: NodeRoot
    path: str = ""
    validator: Validator | None = None


_NODE_ROWS = (
    NodeFile("min_free_kbytes", NodeRoot.PROC_SYS, "vm/min_free_kbytes", Range(10_240, 10_485_760)),
    NodeFile("watermark_scale_factor", NodeRoot.PROC_SYS, "vm/watermark_scale_factor", Range(10, 400)),
    NodeFile("reap_background", NodeRoot.SYS, "kernel/mm/memcg_reaper/reap_background", _BIT),
    NodeFile("enabled", NodeRoot.SYS, "kernel/mm/pagecache_limit/enabled", _BIT),
    NodeFile("scan_period_in_seconds", NodeRoot.SYS, "kernel/mm/kidled/scan_period_in_seconds", _BYTES),
    NodeFile("use_hierarchy", NodeRoot.SYS, "kernel/mm/kidled/use_hierarchy", _BIT),
    NodeFile("sched_features", NodeRoot.SYS, "kernel/debug/sched_features"),
    NodeFile("sched_group_identity_enabled", NodeRoot.PROC_SYS, "kernel/sched_group_identity_enabled", _BIT),
    NodeFile("sched_idle_saver_wmark", NodeRoot.PROC_SYS, "kernel/sched_idle_saver_wmark"),
    NodeFile("sched_core", NodeRoot.PROC_SYS, "kernel/sched_core", _BIT),
    NodeFile("core_sched_cookie", NodeRoot.VIRTUAL),
    NodeFile("oom_score_adj", NodeRoot.VIRTUAL, validator=Range(-1000, 1000)),
)
NODE_FILES: Mapping[str, NodeFile] = MappingProxyType({row.name: row for row in _NODE_ROWS})
