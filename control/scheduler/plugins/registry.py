"""All plugins, by their names in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from control.scheduler.framework.plugin import Plugin
from control.scheduler.plugins.balancedallocation import NodeResourcesBalancedAllocation
from control.scheduler.plugins.coscheduling import Coscheduling
from control.scheduler.plugins.defaultbinder import DefaultBinder
from control.scheduler.plugins.defaultprebind import DefaultPreBind
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.plugins.deviceshare import DeviceShare
from control.scheduler.plugins.dynamicresources import DynamicResources
from control.scheduler.plugins.elasticquota import ElasticQuotaPlugin
from control.scheduler.plugins.imagelocality import ImageLocality
from control.scheduler.plugins.interferenceaware import InterferenceAware
from control.scheduler.plugins.interpodaffinity import InterPodAffinity
from control.scheduler.plugins.loadaware import LoadAwareScheduling
from control.scheduler.plugins.nodeaffinity import NodeAffinityPlugin
from control.scheduler.plugins.nodename import NodeName
from control.scheduler.plugins.nodenumaresource import NodeNUMAResource
from control.scheduler.plugins.nodeports import NodePorts
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.plugins.noderesourcesfitplus import NodeResourcesFitPlus
from control.scheduler.plugins.nodeunschedulable import NodeUnschedulable
from control.scheduler.plugins.podtopologyspread import PodTopologySpread
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.plugins.reservation import ReservationPlugin
from control.scheduler.plugins.scarceresourceavoidance import ScarceResourceAvoidance
from control.scheduler.plugins.schedulinggates import SchedulingGates
from control.scheduler.plugins.schedulinghint import SchedulingHintPlugin
from control.scheduler.plugins.tainttoleration import TaintToleration
from control.scheduler.plugins.volumes import NodeVolumeLimits, VolumeBinding, VolumeRestrictions, VolumeZone

PLUGINS: Final[Mapping[str, type[Plugin]]] = {
    plugin.name: plugin
    for plugin in (
        Coscheduling,
        DefaultBinder,
        DefaultPreBind,
        DefaultPreemption,
        DeviceShare,
        DynamicResources,
        ElasticQuotaPlugin,
        ImageLocality,
        InterPodAffinity,
        InterferenceAware,
        LoadAwareScheduling,
        NodeAffinityPlugin,
        NodeName,
        NodeNUMAResource,
        NodePorts,
        NodeResourcesBalancedAllocation,
        NodeResourcesFit,
        NodeResourcesFitPlus,
        NodeUnschedulable,
        NodeVolumeLimits,
        PodTopologySpread,
        PrioritySort,
        ReservationPlugin,
        ScarceResourceAvoidance,
        SchedulingGates,
        SchedulingHintPlugin,
        TaintToleration,
        VolumeBinding,
        VolumeRestrictions,
        VolumeZone,
    )
}
