"""The webhooks of ElasticQuotas, and the debug page `/elasticQuota` (spec 04 §16).

Both webhooks share the process's topology. An admitted quota is added to it at once, unless it is a dry run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import msgspec
from aiohttp import web

from control.manager.caches import POD_BY_QUOTA
from control.manager.context import ManagerContext
from control.manager.quota.mutate import QuotaError, mutate_quota
from control.manager.quota.selfchecks import self_error
from control.manager.quota.topology import page, shared
from control.manager.quota.treechecks import TreeRules, tree_error
from control.manager.webhooks.errors import forbidden
from control.manager.webhooks.objects import Json
from control.manager.webhookserver.admission import (
    CREATE,
    AllowResponse,
    DenyResponse,
    Response,
    WebhookHandler,
    WebhookRequest,
    patch_response,
)
from control.manager.webhookserver.metrics import MUTATE, VALIDATE, WebhookMetrics
from control.quota.info import QuotaInfo
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError
from koordlet.kube.selectors import by_name

log = get_logger(__name__)

_RESOURCE = ("scheduling.sigs.k8s.io", "elasticquotas", "")
_SEALED = frozenset({names.SYSTEM_QUOTA, names.ROOT_QUOTA})
_KEPT = _SEALED | {names.DEFAULT_QUOTA}


class _QuotaHandler(WebhookHandler):
    """Common parts of both webhooks: the topology, and reading parents that it does not contain from the API server."""

    resources = frozenset({_RESOURCE})

    def __init__(self, context: ManagerContext) -> None:
        self._client = context.client
        self._topology = shared(context)
        self._metrics = WebhookMetrics.of(context.internal)

    async def _fetch_parent(self, quota: ElasticQuota) -> None:
        """Add a missing parent: another replica may have just admitted it, before the watch delivered it here."""
        parent = annotation.parent(quota.metadata.name, quota.metadata.labels)
        if parent in ("", names.ROOT_QUOTA) or self._topology.tree.get(parent) is not None:
            return
        try:
            for parent_quota in await self._client.list(ElasticQuota, field_selector=by_name(parent)):
                self._topology.expect(parent, parent_quota.metadata.key, QuotaInfo.of(parent_quota))
        except KubeError as error:
            log.warning("Cannot read the parent of a quota", quota=quota.metadata.name, parent=parent, err=error)


class MutateQuota(_QuotaHandler):
    """`/mutate-…-elasticquota`: parent, tree id and shared weight of new quotas."""

    path, gate = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota", "ElasticMutatingWebhook"

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation != CREATE:
            return AllowResponse()
        quota = request.decode(ElasticQuota)
        await self._fetch_parent(quota)
        raw: Json = msgspec.json.decode(bytes(request.object))
        after = copy.deepcopy(raw)
        with self._metrics.plugin(MUTATE, "elasticquota", request.operation, "QuotaMetaChecker") as outcome:
            try:
                weight = mutate_quota(after, quota, self._topology.tree)
            except QuotaError as error:
                outcome.rejected = True
                return DenyResponse(str(error))
        for name, amount in (weight or {}).items():
            self._metrics.shared_weight.labels(quota.metadata.name, name).set(float(amount))
        return patch_response(raw, after)


class ValidateQuota(_QuotaHandler):
    """`/validate-…-elasticquota`: the rules of the tree."""

    path, gate = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota", "ElasticValidatingWebhook"

    def __init__(self, context: ManagerContext) -> None:
        super().__init__(context)
        self._pods = context.caches.informer(Pod)
        self._rules = TreeRules(
            keys_may_differ=context.gates.enabled("ElasticQuotaEnableUpdateResourceKey"),
            check_guarantee=context.gates.enabled("ElasticQuotaGuaranteeUsage"),
            parents_may_have_pods=context.gates.enabled("SupportParentQuotaSubmitPod"),
        )

    async def handle(self, request: WebhookRequest) -> Response:
        with self._metrics.plugin(VALIDATE, "elasticquota", request.operation, "QuotaMetaChecker") as outcome:
            match request.operation:
                case "CREATE":
                    error = await self._create(request)
                case "UPDATE":
                    error = await self._update(request)
                case "DELETE":
                    error = self._delete(request)
                case _:
                    error = None
            outcome.rejected = error is not None
        return AllowResponse() if error is None else DenyResponse(error)

    async def _create(self, request: WebhookRequest) -> str | None:
        quota = request.decode(ElasticQuota)
        quota.metadata.namespace = quota.metadata.namespace or request.namespace
        name = quota.metadata.name
        if self._topology.taken(name, quota.metadata.key):
            return forbidden("metadata.name", f"quota {name} exists already; names are unique over all namespaces")
        return await self._judge(request, quota, None)

    async def _update(self, request: WebhookRequest) -> str | None:
        quota, before = request.decode(ElasticQuota), request.decode_old(ElasticQuota)
        quota.metadata.namespace = quota.metadata.namespace or request.namespace
        if _relevant(quota) == _relevant(before):
            return None
        name = quota.metadata.name
        if name in _SEALED:
            return forbidden("metadata.name", f"quota {name} cannot be modified")
        if self._topology.tree.get(name) is None:
            return forbidden("metadata.name", f"quota {name} is unknown")
        return await self._judge(request, quota, QuotaInfo.of(before))

    async def _judge(self, request: WebhookRequest, quota: ElasticQuota, old: QuotaInfo | None) -> str | None:
        await self._fetch_parent(quota)
        # No await between here and `expect`: two concurrent requests must see each other.
        info, tree = QuotaInfo.of(quota), self._topology.tree
        for namespace in info.namespaces:
            other = tree.namespaces.get(namespace, info.name)
            if other != info.name:
                path = f"annotations.{names.ANNOTATION_QUOTA_NAMESPACES}"
                return forbidden(path, f"namespace {namespace} is bound to quota {other}")
        error = self_error(quota) or tree_error(tree, info, old, self._rules, lambda: self._has_pods(old))
        if error is None and not request.dry_run:
            self._topology.expect(info.name, quota.metadata.key, info)
        return error

    def _delete(self, request: WebhookRequest) -> str | None:
        name = request.name or request.decode_old(ElasticQuota).metadata.name
        if name in _KEPT:
            return forbidden("metadata.name", f"quota {name} cannot be deleted")
        tree = self._topology.tree
        if tree.get(name) is None:
            return forbidden("metadata.name", f"quota {name} is unknown")
        if children := tree.children(name):
            listed = ", ".join(child.name for child in children)
            return forbidden("metadata.name", f"quota {name} has children ({listed})")
        if pods := self._pods.by_index(POD_BY_QUOTA, name):
            listed = ", ".join(pod.metadata.key for pod in pods[:2])
            return forbidden("metadata.name", f"quota {name} has {len(pods)} pods ({listed})")
        if not request.dry_run:
            self._topology.expect(name, f"{request.namespace}/{name}", None)
        return None

    def _has_pods(self, quota: QuotaInfo | None) -> bool:
        """Whether pods belong to a quota, by label or by namespace."""
        if quota is None:
            return False
        spaces = {quota.name, *quota.namespaces}
        return bool(self._pods.by_index(POD_BY_QUOTA, quota.name)) or _any_in(self._pods.list(), spaces)


def _any_in(pods: Iterable[Pod], namespaces: set[str]) -> bool:
    return any(pod.metadata.namespace in namespaces for pod in pods)


def _relevant(quota: ElasticQuota) -> object:
    """The fields that an update must change to be validated."""
    labels, annotations = quota.metadata.labels, quota.metadata.annotations
    keys = (names.LABEL_QUOTA_PARENT, names.LABEL_QUOTA_IS_PARENT, names.LABEL_QUOTA_TREE_ID)
    return [labels.get(key, "") for key in keys], annotations.get(names.ANNOTATION_QUOTA_NAMESPACES, ""), quota.spec


def routes(context: ManagerContext) -> list[web.RouteDef]:
    """The debug page `/elasticQuota`."""
    topology = shared(context)

    async def show(_: web.Request) -> web.Response:
        return web.json_response(page(topology.tree))

    return [web.get("/elasticQuota", show)]
