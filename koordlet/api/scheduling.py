"""The kinds of scheduling.koordinator.sh and scheduling.sigs.k8s.io in one place to import from."""

from koordlet.api.device import Device, DeviceInfo, DeviceSpec, DeviceTopology, VirtualFunction, VirtualFunctionGroup
from koordlet.api.explanation import ScheduleExplanation
from koordlet.api.migration import PodMigrationJob, PodMigrationJobCondition, PodMigrationJobSpec
from koordlet.api.networktopology import ClusterNetworkTopology
from koordlet.api.podgroup import PodGroup
from koordlet.api.reservation import Reservation, ReservationOwner, ReservationSpec, ReservationStatus

__all__ = [
    "ClusterNetworkTopology",
    "Device",
    "DeviceInfo",
    "DeviceSpec",
    "DeviceTopology",
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
