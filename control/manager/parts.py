"""The tables of controllers and webhooks, one line each. `process` runs those that flags and feature gates enable."""

from __future__ import annotations

from collections.abc import Callable

from control.manager.colocationprofile import ColocationProfileController
from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.nodemetric import NodeMetricController
from control.manager.noderesource.controller import NodeResourceController
from control.manager.nodeslo import NodeSLOController
from control.manager.peers.controller import PeersController
from control.manager.queueing.jobcontroller import QueuedJobsController
from control.manager.queueing.queuecontroller import QueueController
from control.manager.quota.hooks import MutateQuota, ValidateQuota
from control.manager.quota.profile import QuotaProfileController
from control.manager.recommender.controller import RecommenderController
from control.manager.webhooks.drains import ValidateDrain
from control.manager.webhooks.migrationjobs import ValidateMigrationJob
from control.manager.webhooks.mutatehooks import MutatePod, MutateReservation
from control.manager.webhooks.objecthooks import MutateNodeStatus, ValidateConfigMap, ValidateNode
from control.manager.webhooks.validatehooks import ValidateBinding, ValidatePod, ValidatePodKeys
from control.manager.webhookserver.admission import WebhookHandler

CONTROLLERS: dict[str, Callable[[ManagerContext], ManagerController]] = {
    "colocationprofile": ColocationProfileController,
    "nodemetric": NodeMetricController,
    "noderesource": NodeResourceController,
    "nodeslo": NodeSLOController,
    "peers": PeersController,
    "queue": QueueController,
    "queuejobs": QueuedJobsController,
    "quotaprofile": QuotaProfileController,
    "recommender": RecommenderController,
}
"""Name as in `--controllers` -> constructor."""

WEBHOOKS: list[tuple[Callable[[ManagerContext], WebhookHandler], str]] = [
    (MutatePod, MutatePod.gate),
    (ValidatePod, ValidatePod.gate),
    (ValidateBinding, ValidateBinding.gate),
    (ValidatePodKeys, ValidatePodKeys.gate),
    (MutateNodeStatus, MutateNodeStatus.gate),
    (ValidateNode, ValidateNode.gate),
    (ValidateConfigMap, ValidateConfigMap.gate),
    (MutateReservation, MutateReservation.gate),
    (ValidateMigrationJob, ValidateMigrationJob.gate),
    (ValidateDrain, ValidateDrain.gate),
    (MutateQuota, MutateQuota.gate),
    (ValidateQuota, ValidateQuota.gate),
]
"""(constructor, feature gate) of every handler; a handler whose gate is off is not constructed."""
