"""Accelerators and RDMA NICs: what describes them, their health, and the reports of Device objects."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row
from scripts.grafana.parts import NODE, N, rate, sum_by

_GPU = "{{node}} GPU {{gpu_minor}}"

DEVICES_DASHBOARD = Dashboard(
    uid="koordlet-devices",
    title="koordlet / Devices",
    description="GPUs that koordlet reads, accelerators that koord-device-daemon describes, RDMA NICs.",
    variables=[NODE],
    rows=[
        Row(
            "Sources",
            [
                Panel(
                    "Collectors of devices",
                    "gpu: NVML; gpu_health: its errors; xpu: files of koord-device-daemon; rdma: sysfs. 0: no figures; "
                    "the label `reason` has the error.",
                    [Query('koordlet_collector_up{node=~"$node",collector=~"gpu|gpu_health|xpu|rdma"}', instant=True)],
                    kind="table",
                ),
                Panel(
                    "Failures",
                    "Collector runs without a result per second, by cause.",
                    [
                        Query(
                            sum_by(
                                "node, collector, cause",
                                rate(
                                    "koordlet_collector_failures_total", '{node=~"$node",collector=~"gpu.*|xpu|rdma"}'
                                ),
                            ),
                            "{{node}} {{collector}} {{cause}}",
                        )
                    ],
                    unit="cps",
                ),
                Panel(
                    "Reports of Device",
                    "Rounds of the Device reporter in 5 minutes; skipped: nothing to report.",
                    [Query(f"round(sum by (status) (increase(koordlet_device_reports_total{N}[5m])))", "{{status}}")],
                    stack=True,
                ),
                Panel(
                    "Reports of ResourceSlices",
                    "Rounds of the reporter of ResourceSlices in 5 minutes; skipped: nothing to report.",
                    [
                        Query(
                            f"round(sum by (status) (increase(koordlet_resource_slice_reports_total{N}[5m])))",
                            "{{status}}",
                        )
                    ],
                    stack=True,
                ),
            ],
        ),
        Row(
            "GPUs",
            [
                Panel(
                    "Health",
                    "1: healthy, 0: unhealthy; `reason` is the fault.",
                    [Query(f"koordlet_gpu_healthy{N}", f"{_GPU} {{{{reason}}}}")],
                    kind="state-timeline",
                    words={"0": ("unhealthy", "red"), "1": ("healthy", "green")},
                ),
                Panel(
                    "Xid errors",
                    "Errors reported by the driver per second, including those caused by programs.",
                    [Query(sum_by("node, xid", rate("koordlet_gpu_xid_errors_total", N)), "{{node}} Xid {{xid}}")],
                    unit="cps",
                ),
                Panel(
                    "Multiprocessors",
                    "Share of each GPU's multiprocessors used, summed over its processes.",
                    [Query(f"koordlet_node_gpu_used_core_ratio{N}", _GPU)],
                    unit="percentunit",
                ),
                Panel(
                    "Memory",
                    "Used share of each GPU's memory, as reported by the GPU.",
                    [Query(f"koordlet_node_gpu_used_memory_bytes{N} / koordlet_node_gpu_memory_bytes{N}", _GPU)],
                    unit="percentunit",
                    max=1,
                ),
            ],
        ),
    ],
)
