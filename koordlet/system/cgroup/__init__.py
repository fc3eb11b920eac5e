"""Everything about cgroup files: the registry of resources, codecs, typed readers, the read cache and batch reads."""

from koordlet.system.cgroup.batch import BatchReader, CgroupTable, Want
from koordlet.system.cgroup.cache import CacheStats, ReadCache
from koordlet.system.cgroup.codecs import UNLIMITED
from koordlet.system.cgroup.discover import container_dirs, discover, pod_dirs
from koordlet.system.cgroup.files import CpuStat, CpuTimes, MemoryStat, NumaMemory
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cgroup.registry import NODE_FILES, RESOURCES, Resource, Support, lookup
from koordlet.system.cgroup.tree import at_depth, cgroup_id, children, walk
from koordlet.system.errors import CgroupGone, KernelFileError, MalformedFile, ResourceUnsupported

__all__ = [
    "NODE_FILES",
    "RESOURCES",
    "UNLIMITED",
    "BatchReader",
    "CacheStats",
    "CgroupFS",
    "CgroupGone",
    "CgroupTable",
    "CpuStat",
    "CpuTimes",
    "KernelFileError",
    "MalformedFile",
    "MemoryStat",
    "NumaMemory",
    "ReadCache",
    "Resource",
    "ResourceUnsupported",
    "Support",
    "Want",
    "at_depth",
    "cgroup_id",
    "children",
    "container_dirs",
    "discover",
    "lookup",
    "pod_dirs",
    "walk",
]
