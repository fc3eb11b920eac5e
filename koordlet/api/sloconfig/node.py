"""The smaller strategies of NodeSLO: cpu burst, system parameters, host applications.

`cpu-burst-config`, `system-config` and `host-application-config` (spec 01 §6.5.4-§6.5.6).
`CPUBurstConfig` is also the pod annotation `koordinator.sh/cpuBurst`.
"""

from typing import Annotated, Final

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.quantity import Quantity

BURST_NONE: Final = "none"
BURST_CPU_ONLY: Final = "cpuBurstOnly"
BURST_QUOTA_ONLY: Final = "cfsQuotaBurstOnly"
BURST_AUTO: Final = "auto"

CGROUP_ROOT: Final = "CgroupRoot"
KUBEPODS: Final = "Kubepods"
KUBEPODS_BURSTABLE: Final = "KubepodsBurstable"
KUBEPODS_BEST_EFFORT: Final = "KubepodsBesteffort"


class CPUBurstConfig(Frozen):
    """How far a pod may exceed its cpu limit."""

    policy: Annotated[str, doc("none (default), cpuBurstOnly, cfsQuotaBurstOnly or auto.")] = ""
    cpu_burst_percent: Annotated[
        int | None, doc("CFS burst in percent of the cpu limit, default 1000.", minimum=0, maximum=10000)
    ] = None
    cfs_quota_burst_percent: Annotated[int | None, doc("Highest CFS quota in percent of the limit, default 300.")] = (
        None
    )
    cfs_quota_burst_period_seconds: Annotated[
        int | None, doc("Seconds that a quota may stay raised; -1 (default) is unlimited.")
    ] = None


class CPUBurstStrategy(CPUBurstConfig):
    """How far the pods of a node may exceed their cpu limits."""

    share_pool_threshold_percent: Annotated[
        int | None, doc("Usage of the shared cpu pool above which quotas are lowered again, default 50.")
    ] = None


class SystemStrategy(Frozen):
    """Kernel parameters of a node. Unset parameters are not changed."""

    min_free_kbytes_factor: Annotated[
        int | None, doc("vm.min_free_kbytes in ten-thousandths of the node's memory.")
    ] = None
    watermark_scale_factor: Annotated[int | None, doc("vm.watermark_scale_factor.")] = None
    memcg_reap_back_ground: Annotated[int | None, doc("1 reaps dead memory cgroups in the background.")] = None
    sched_group_identity_enabled: Annotated[int | None, doc("kernel.sched_group_identity_enabled.")] = None
    sched_idle_saver_wmark: Annotated[int | None, doc("kernel.sched_idle_saver_wmark in nanoseconds.")] = None
    sched_features: Annotated[dict[str, bool], doc("Scheduler features of the kernel to switch on or off.")] = {}
    page_cache_limit_enabled: Annotated[int | None, doc("1 enables page cache limits.")] = None
    # Go always writes this field. Here absent means "inherit"; otherwise a node entry would reset it to 0.
    total_network_bandwidth: Annotated[Quantity | None, doc("Bandwidth of the node in bit/s, default 0.")] = None


class CgroupPath(Frozen):
    """The cgroup of a host application: base directory, parent directory, own directory."""

    base: Annotated[str, doc("CgroupRoot, Kubepods, KubepodsBurstable or KubepodsBesteffort.")] = ""
    parent_dir: Annotated[str, doc("Directory below the base.")] = ""
    relative_path: Annotated[str, doc("Directory below the parent directory.")] = ""


class HostApplicationStrategy(Frozen):
    """Reserved: no field yet."""


class HostApplicationSpec(Frozen):
    """An application outside Kubernetes that koordlet manages."""

    name: Annotated[str, doc("Name of the application.")] = ""
    priority: Annotated[str, doc("Priority class: koord-prod, koord-mid, koord-batch or koord-free.")] = ""
    qos: Annotated[str, doc("QoS class.")] = ""
    cgroup_path: Annotated[CgroupPath | None, doc("Cgroup of the application.")] = None
    strategy: Annotated[HostApplicationStrategy | None, doc("Reserved.")] = None
