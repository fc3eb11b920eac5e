"""The volume plugins: VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone (spec 05 §4)."""

from control.scheduler.plugins.volumes.binding import VolumeBinding
from control.scheduler.plugins.volumes.limits import NodeVolumeLimits
from control.scheduler.plugins.volumes.restrictions import VolumeRestrictions
from control.scheduler.plugins.volumes.zone import VolumeZone

__all__ = ["NodeVolumeLimits", "VolumeBinding", "VolumeRestrictions", "VolumeZone"]
