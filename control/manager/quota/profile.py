"""The controller `quotaprofile`: a root quota as large as some nodes, kept so (spec 04 §7).

Looked at when a profile's generation changes and every ten seconds. A profile that is deleted leaves its quota behind.
"""

from __future__ import annotations

import msgspec

from control.manager.context import Context
from control.manager.controller import Controller
from control.manager.quota.profiledecide import Wanted, resource_keys, tree_id, wanted
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.quota import ElasticQuota, ElasticQuotaProfile
from koordlet.api.encoding.wire import to_builtins
from koordlet.api.meta import ObjectMeta, SelectorError
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound

log = get_logger(__name__)

AGAIN_SECONDS = 10.0
FAILED_SECONDS = 2.0


class QuotaProfileController(Controller):
    """See the module text."""

    name = "quotaprofile"

    def __init__(self, context: Context) -> None:
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
            log.error("Node selector of a quota profile", profile=key, err=error)
            return AGAIN_SECONDS
        keys, problem = resource_keys(meta.annotations)
        if problem is not None:
            log.warning("Resource keys of a quota profile: cpu and memory then", profile=key, err=problem)
        return await self._keep(profile, wanted(profile, nodes, keys))

    async def _keep(self, profile: ElasticQuotaProfile, want: Wanted) -> float:
        """Create or change the quota; an Event on the profile says what went wrong."""
        client, name, namespace = self.context.client, profile.spec.quota_name, profile.metadata.namespace
        reason = "UpdateQuotaFailed"
        try:
            try:
                quota = await client.get(ElasticQuota, name, namespace)
            except NotFound:
                reason = "CreateQuotaFailed"
                meta = ObjectMeta(name=name, namespace=namespace, labels=want.labels, annotations=want.annotations)
                await client.create(ElasticQuota(metadata=meta, spec=want.spec))
                return AGAIN_SECONDS
            if want.changes(quota):
                await client.patch(ElasticQuota, name, namespace, body=_patch(quota, want))
        except KubeError as error:
            self.context.events.warning(profile, reason, str(error))
            return FAILED_SECONDS
        return AGAIN_SECONDS


def _patch(quota: ElasticQuota, want: Wanted) -> dict[str, object]:
    """A merge patch, conditional on the version read; resources that are no longer wanted are taken out."""
    spec = {
        part: dict.fromkeys(getattr(quota.spec, part)) | to_builtins(getattr(want.spec, part))
        for part in msgspec.structs.asdict(want.spec)
    }
    meta = {
        "resourceVersion": quota.metadata.resource_version,
        "labels": want.labels,
        "annotations": want.annotations,
    }
    return {"metadata": meta, "spec": spec}
