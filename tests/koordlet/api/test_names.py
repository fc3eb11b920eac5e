"""The keys of the protocol, written a second time: a changed key would break clusters."""

from __future__ import annotations

from collections import Counter

from koordlet.api import names

KEYS = {
    "": """
        CAMBRICON_DSMLU_ASSIGHED CAMBRICON_DSMLU_PROFILE control-plane cpu memory
        pod-group.scheduling.sigs.k8s.io predicate-time
    """,
    "amd.com": """
        gpu
    """,
    "app.kubernetes.io": """
        managed-by
    """,
    "cambricon.com": """
        dsmlu.lock
    """,
    "config.koordinator.sh": """
        controller-managed skip-update-resources
    """,
    "dcu.com": """
        gpu
    """,
    "descheduler.alpha.kubernetes.io": """
        evict
    """,
    "descheduler.koordinator.sh": """
        eviction-limits interference-moves passed-arbitration pod-arbitrating
    """,
    "gang.scheduling.koordinator.sh": """
        groups match-policy min-available mode name network-topology-index network-topology-spec timeout
        total-number waiting-time
    """,
    "hami.io": """
        mutex.lock vgpu-node
    """,
    "huawei.com": """
        Ascend310P npu-core npu-core npu-cpu npu-dvpp
    """,
    "internal.scheduling.koordinator.sh": """
        bind-gang-group-id bind-gang-member-count original-scheduler-name scheduling-hint
    """,
    "koordinator.sh": """
        binding-admission-bypass blkioQOS configmap-type core-sched-group-id core-sched-policy cpuBurst
        cpuQOS evict-policy evict-reason evict-trigger eviction-enabled eviction-policy eviction-priority
        fpga gpu gpu-core gpu-isolation-provider gpu-memory gpu-memory-ratio gpu.shared job-created-by
        memoryQOS networkQOS oom-score-adj oom-score-adj-spec priority priority-class qosClass rdma
    """,
    "kube-queue": """
        available-queue available-quota queue-name
    """,
    "kubelet.koordinator.sh": """
        cpu-manager-policy
    """,
    "kubernetes.io": """
        batch-cpu batch-memory gpu-driver gpu-model mid-cpu mid-memory
    """,
    "metax-tech.com": """
        gpu-devices-allocated
    """,
    "node.koordinator.sh": """
        be-cpu-shared-pools colocation-strategy cpu-basic-info cpu-bind-policy cpu-normalization-enabled
        cpu-normalization-ratio cpu-reclaim-ratio cpu-shared-pools cpu-topology enable-numa-reservation
        extended-resource-spec gpu-driver-version gpu-model gpu-partition-policy gpu-vendor lending
        memory-reclaim-ratio mid-static-cpu-reserved-ratio mid-static-memory-reserved-ratio
        network-bandwidth numa-allocate-strategy numa-topology-policy originExtendedAllocatable
        pod-cpu-allocs raw-allocatable resctrl reservation resource-amplification-ratio
        secondary-device-well-planned system-qos-resource thirdPartyAllocations
    """,
    "nvidia.com": """
        gpu
    """,
    "pod-group.scheduling.sigs.k8s.io": """
        match-policy min-available name
    """,
    "pod.koordinator.sh": """
        is-pre-allocatable mutating-update pre-allocatable-priority replace-resources
        skip-enhanced-validation
    """,
    "quota.scheduling.koordinator.sh": """
        admission allocated allow-force-update allow-lent-resource child-request guaranteed
        ignore-default-tree is-parent is-root max-strict-check-resource-keys name namespaces
        non-preemptible-request non-preemptible-used parent preemptible profile request resource-keys
        runtime shared-weight total-resource tree-id unschedulable-resource
    """,
    "drain.descheduler.koordinator.sh": """
        abort clean-taint cordon drain-node migration-policy node-group node-name node-planning
        paused-after-confirmed pod-name pod-namespace
    """,
    "runtimeproxy.koordinator.sh": """
        skip-hookserver
    """,
    "scheduling.koordinator.sh": """
        bind-gang-group-id bind-gang-member-count bind-timestamp device-allocate-hint device-allocated
        device-joint-allocate disable-preemptible eviction-cost exact-match-reservation gpu-minors
        gpu-partition-spec gpu-partitions is-pre-allocation load-estimated-scaling-factors
        load-estimated-seconds-after-initialized load-estimated-seconds-after-pod-scheduled
        network-topology-selector numa-topology-spec operating-mode pre-allocation-required
        preemption-policy questioned-object-key reservation-affinity reservation-allocated
        reservation-current-owner reservation-ignored reservation-name reservation-node reservation-order
        reservation-owners reservation-resize-allocatable reservation-restricted-options reserve-pod
        resource-spec resource-status scheduler-name scheduling-hint soft-eviction sync-barrier-
        topology-key-to-explain usage-thresholds
    """,
}


def test_every_key_is_spelled_as_on_the_wire() -> None:
    constants = {
        value for name, value in vars(names).items() if name.startswith(("LABEL_", "ANNOTATION_", "RESOURCE_"))
    }
    pinned = {f"{domain}/{key}" if domain else key for domain, keys in KEYS.items() for key in keys.split()}
    assert constants == pinned


def test_no_two_constants_of_a_kind_share_a_key() -> None:
    labels = [value for name, value in vars(names).items() if name.startswith("LABEL_")]
    annotations = [value for name, value in vars(names).items() if name.startswith("ANNOTATION_")]
    assert max(Counter(labels).values()) == max(Counter(annotations).values()) == 1


def test_deprecated_resources_map_to_the_current_ones() -> None:
    assert names.DEPRECATED_BATCH_RESOURCES["koordinator.sh/batch-cpu"] == "kubernetes.io/batch-cpu"
    assert all(
        old.partition("/")[2] == new.partition("/")[2]
        for old, new in {**names.DEPRECATED_BATCH_RESOURCES, **names.DEPRECATED_DEVICE_RESOURCES}.items()
    )
