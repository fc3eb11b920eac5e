"""DeviceShare: GPUs, RDMA NICs and FPGAs for pods (spec 06 §3)."""

from control.scheduler.plugins.deviceshare.plugin import DeviceShare

__all__ = ["DeviceShare"]
