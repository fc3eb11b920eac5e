"""Which modules use the rights of each role: data for the table in docs/security.md.

The keys are components and the purposes of their roles; the table cannot be written if one is missing here, and a test
fails for a module that does not exist or belongs to another component.
"""

from __future__ import annotations

from typing import Final

_PAGES: Final = ("control.component.pages", "koordlet.kube.delegated")
_ELECTION: Final = ("control.component.election", "koordlet.kube.leader")

USERS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "koordlet": {
        "this node's objects": ("koordlet.statesinformer.states", "koordlet.statesinformer.ownobject"),
        "reports;": (
            "koordlet.statesinformer.nodemetric.reporter", "koordlet.statesinformer.nrt.reporter",
            "koordlet.statesinformer.devices.reporter", "koordlet.statesinformer.nodeslo.condition",
        ),
        "pods come from the kubelet": ("koordlet.statesinformer.pods.kubelet", "koordlet.statesinformer.nrt.kubelet"),
        "gate BlkIOReconcile": ("koordlet.statesinformer.pods.claims",),
        "gate ResourceSlices": ("koordlet.statesinformer.devices.slicereporter",),
        "events about pods": ("koordlet.qosmanager.engine.evictor", "koordlet.qosmanager.engine.notices"),
        "callers of the pages": ("koordlet.wiring.serving", "koordlet.kube.delegated"),
    },
    "koord-manager": {
        "caches of controllers": ("control.manager.caches", "control.manager.nodeobjects"),
        "nodemetric and nodeslo": ("control.manager.nodemetric", "control.manager.nodeslo"),
        "noderesource": ("control.manager.noderesource.controller", "control.manager.noderesource.zones"),
        "caches of the webhooks;": ("control.manager.caches", "control.manager.webhooks.lookup"),
        "quotaprofile": ("control.manager.quota.profile", "control.manager.quota.hooks"),
        "pods of quotas": ("control.manager.caches",),
        "its own rights": ("control.component.rights",),
        "colocationprofile": ("control.manager.colocationprofile.controller",),
        "recommender": (
            "control.manager.recommender.controller", "control.manager.recommender.lineage",
            "control.manager.recommender.eviction",
        ),
        "queue and queuejobs": (
            "control.manager.queueing.queuecontroller", "control.manager.queueing.jobcontroller",
            "control.manager.queueing.unitstates",
        ),
        "what is wrong": ("control.manager.config", "control.manager.context"),
        "the certificate reconciler": ("control.manager.webhookserver.rotation",),
        "callers of the metrics pages": ("control.manager.process", "koordlet.kube.delegated"),
        "the configuration": ("control.manager.config",),
        "leader election": ("control.manager.leading", "koordlet.kube.leader"),
        "the certificates of the webhook server": ("control.manager.webhookserver.certstore",),
        "webhooks are registered": ("control.manager.webhookserver.rotation",),
    },
    "koord-scheduler": {
        "inputs of decisions": ("control.scheduler.process.assembly", "control.component.informers"),
        "results of decisions": (
            "control.scheduler.cycle.binding", "control.scheduler.cycle.reporter",
            "control.scheduler.cycle.victimdeletion", "control.scheduler.plugins.volumes",
            "control.scheduler.plugins.coscheduling.podgroups",
        ),
        "devices of resource claims": ("control.scheduler.plugins.dynamicresources.claimwriter",),
        "locks of nodes": ("control.scheduler.plugins.deviceshare.nodelocks",),
        "the status of the network topology": ("control.scheduler.plugins.coscheduling.topologystatus",),
        "the status of quotas": ("control.scheduler.plugins.elasticquota.controllers",),
        "reservations:": ("control.scheduler.reservationcontrol.controller",),
        "authentication": _PAGES,
        "reports to users": ("control.scheduler.cycle.reporter", "control.scheduler.explain.controller"),
        "leader election": _ELECTION,
    },
    "koord-descheduler": {
        "inputs of decisions": ("control.descheduler.state.cluster",),
        "inputs of DefaultEvictor": ("control.descheduler.plugins.defaultevictor.plugin",),
        "authentication": _PAGES,
        "reports to users": ("control.descheduler.framework.handle",),
        "its own rights": ("control.component.rights",),
        "leader election": _ELECTION,
        "evictions, of every plugin": ("control.descheduler.framework.evictor",),
        "MigrationController: limits": ("control.descheduler.migration.scales",),
        "MigrationController: jobs": (
            "control.descheduler.migration.executor", "control.descheduler.migration.jobbook",
        ),
        "MigrationController: the present pod": ("control.descheduler.migration.evictors",),
        "ScaleDownBinPack": ("control.descheduler.plugins.scaledownbinpack",),
        "CustomPriority": ("control.descheduler.plugins.custompriority",),
        "drains of nodes": (
            "control.descheduler.drain.controller", "control.descheduler.drain.groupcontroller",
            "control.descheduler.drain.cordon",
        ),
    },
}  # fmt: skip
"""Component -> the beginning of a purpose -> modules."""
PACKAGES: Final = {
    "koordlet": ("koordlet",),
    "koord-manager": ("control.manager", "control.component", "koordlet.kube"),
    "koord-scheduler": ("control.scheduler", "control.component", "koordlet.kube"),
    "koord-descheduler": ("control.descheduler", "control.component", "koordlet.kube"),
}


def users_of(component: str, purpose: str) -> tuple[str, ...]:
    """Raises KeyError if the purpose has no entry."""
    longest = max((begin for begin in USERS[component] if purpose.startswith(begin)), key=len, default=purpose)
    return USERS[component][longest]
