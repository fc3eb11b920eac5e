"""The controller `quotaprofile`: keeps a root quota equal to the resources of the selected nodes (spec 04 §7).

A profile is reconciled when its generation changes and every ten seconds. The quota of a deleted profile is kept.
"""

from __future__ import annotations

import msgspec

from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.quota.profiledecide import DesiredQuota, desired_quota, resource_keys, tree_id
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.quota import ElasticQuota, ElasticQuotaProfile
from koordlet.api.encoding.wire import to_builtins
from koordlet.api.meta import ObjectMeta, SelectorError
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound

log = get_logger(__name__)

RECONCILE_INTERVAL_S = 10.0
RETRY_DELAY_S = 2.0


class QuotaProfileController(ManagerController):
    """See the module docstring."""

    name = "quotaprofile"

    def __init__(self, context: ManagerContext) -> None:
        super().__init__(context)
        self._profiles = context.caches.informer(ElasticQuotaProfile)
        self._nodes = context.caches.informer(Node)

    def watch(self) -> None:
        self._profiles.add_handler(on_add=lambda new: self.queue.add(new.metadata.key), on_update=self._updated)

    def _updated(self, old: ElasticQuotaProfile, new: ElasticQuotaProfile) -> None:
        if old.metadata.generation != new.metadata.generation:
            self.queue.add(new.metadata.key)

    async def reconcile(self, key: str) -> float | None:
        profile = self._profiles.get(key)
        if profile is None or profile.metadata.deletion_timestamp is not None:
            return None
        meta = profile.metadata
        if not meta.labels.get(names.LABEL_QUOTA_TREE_ID):
            body = {"metadata": {"labels": {names.LABEL_QUOTA_TREE_ID: tree_id(profile)}}}
            await self.context.client.patch(ElasticQuotaProfile, meta.name, meta.namespace, body=body)
        try:
            nodes = [node for node in self._nodes.list() if profile.spec.node_selector.matches(node.metadata.labels)]
        except SelectorError as error:
            log.error("Invalid node selector of a quota profile", profile=key, err=error)
            return RECONCILE_INTERVAL_S
        keys, problem = resource_keys(meta.annotations)
        if problem is not None:
            log.warning("Invalid resource keys of a quota profile, using cpu and memory", profile=key, err=problem)
        return await self._apply(profile, desired_quota(profile, nodes, keys))

    async def _apply(self, profile: ElasticQuotaProfile, desired: DesiredQuota) -> float:
        """Create or patch the quota; an error is reported as an Event on the profile."""
        client, name, namespace = self.context.client, profile.spec.quota_name, profile.metadata.namespace
        reason = "UpdateQuotaFailed"
        try:
            try:
                quota = await client.get(ElasticQuota, name, namespace)
            except NotFound:
                reason = "CreateQuotaFailed"
                meta = ObjectMeta(
                    name=name, namespace=namespace, labels=desired.labels, annotations=desired.annotations
                )
                await client.create(ElasticQuota(metadata=meta, spec=desired.spec))
                return RECONCILE_INTERVAL_S
            if desired.differs_from(quota):
                await client.patch(ElasticQuota, name, namespace, body=_patch(quota, desired))
        except KubeError as error:
            self.context.events.warning(profile, reason, str(error))
            return RETRY_DELAY_S
        return RECONCILE_INTERVAL_S


def _patch(quota: ElasticQuota, desired: DesiredQuota) -> dict[str, object]:
    """A merge patch, conditional on the resourceVersion read; it removes resources that are no longer desired."""
    spec = {
        field: dict.fromkeys(getattr(quota.spec, field)) | to_builtins(getattr(desired.spec, field))
        for field in msgspec.structs.asdict(desired.spec)
    }
    meta = {
        "resourceVersion": quota.metadata.resource_version,
        "labels": desired.labels,
        "annotations": desired.annotations,
    }
    return {"metadata": meta, "spec": spec}
