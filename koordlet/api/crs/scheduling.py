"""Re-exports the kinds of scheduling.koordinator.sh and scheduling.sigs.k8s.io."""

from koordlet.api.crs.device import (
    Device,
    DeviceInfo,
    DeviceSpec,
    DeviceTopology,
    VirtualFunction,
    VirtualFunctionGroup,
)
from koordlet.api.crs.drain import DrainNode, DrainNodeGroup
from koordlet.api.crs.explanation import ScheduleExplanation
from koordlet.api.crs.migration import PodMigrationJob, PodMigrationJobCondition, PodMigrationJobSpec
from koordlet.api.crs.networktopology import ClusterNetworkTopology
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.crs.reservation import Reservation, ReservationOwner, ReservationSpec, ReservationStatus

__all__ = [
    "ClusterNetworkTopology",
    "Device",
    "DeviceInfo",
    "DeviceSpec",
    "DeviceTopology",
    "DrainNode",
    "DrainNodeGroup",
    "PodGroup",
    "PodMigrationJob",
    "PodMigrationJobCondition",
    "PodMigrationJobSpec",
    "Reservation",
    "ReservationOwner",
    "ReservationSpec",
    "ReservationStatus",
    "ScheduleExplanation",
    "VirtualFunction",
    "VirtualFunctionGroup",
]
