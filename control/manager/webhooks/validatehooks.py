"""The validating webhooks of pods and of bindings (spec 04 §12, §13): read the caches, call the pure checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from control.manager.caches import QUOTA_BY_NAME, QUOTA_BY_NAMESPACE
from control.manager.context import ManagerContext
from control.manager.quota import shared
from control.manager.quota.evaluation import QuotaEvaluator
from control.manager.quota.resolve import change_errors, submission_errors
from control.manager.trust import rule as trust
from control.manager.trust.users import TrustedUsers
from control.manager.webhooks import binding, enhanced
from control.manager.webhooks.devices import device_errors
from control.manager.webhooks.errors import MutationError, aggregate
from control.manager.webhooks.lookup import Lookup
from control.manager.webhooks.podvalidating import class_errors, forbidden_annotations
from control.manager.webhooks.profiles import match
from control.manager.webhookserver import registrations
from control.manager.webhookserver.admission import (
    CREATE,
    UPDATE,
    AllowResponse,
    DenyResponse,
    Response,
    WebhookHandler,
    WebhookRequest,
)
from control.manager.webhookserver.metrics import VALIDATE, WebhookMetrics
from control.quota.podquota import quota_of_pod
from koordlet.api import names
from koordlet.api.core import ConfigMap, Namespace, Pod
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound

log = get_logger(__name__)

UNCOUNTED = frozenset({"", names.DEFAULT_QUOTA, names.SYSTEM_QUOTA, names.ROOT_QUOTA})
"""Quotas under which pods are not counted at admission."""


class PodQuotaCheck(Protocol):
    """Checks a pod against its quota and reserves its requests (spec 04 §17)."""

    async def evaluate(self, pod: Pod, quota: ElasticQuota, *, dry_run: bool) -> str | None:
        """None when the pod fits (and is now reserved, unless it is a dry run), else the reason for the refusal."""
        ...


class EnhancedSource:
    """The enhanced validator's ConfigMap, read at first use and again when it is older than the interval."""

    def __init__(self, context: ManagerContext) -> None:
        self._context = context
        self._config = enhanced.EnhancedConfig()
        self._due: float | None = None
        self._lock = asyncio.Lock()

    async def rules(self) -> enhanced.EnhancedRules:
        """The rules in force. If the ConfigMap cannot be read or parsed, the last valid rules are kept."""
        clock, options = self._context.clock, self._context.options
        async with self._lock:
            if self._due is None or clock.monotonic() >= self._due:
                self._due = clock.monotonic() + options.pod_enhanced_validator_reconcile_interval
                name = options.pod_enhanced_validator_config_name
                namespace = options.pod_enhanced_validator_config_namespace
                try:
                    config_map = await self._context.client.get(ConfigMap, name, namespace)
                    problem = self._config.update(config_map.data)
                except NotFound:
                    problem = self._config.update(None)
                except KubeError as error:
                    problem = str(error)
                if problem is not None:
                    log.error(
                        "Cannot load the rules of the enhanced validator, keeping the last ones",
                        configmap=f"{namespace}/{name}",
                        err=problem,
                    )
        return self._config.rules


class TrustedKeys:
    """The rule of trusted keys with its caches: profiles grant the values that they set (docs/security.md)."""

    def __init__(self, context: ManagerContext) -> None:
        options = context.options
        self._users = TrustedUsers.read(options.trusted_key_users, options.trusted_key_groups, context.namespace)
        self._profiles = context.caches.informer(ClusterColocationProfile)
        self._namespaces = Lookup(context, Namespace)

    async def errors(self, request: WebhookRequest, pod: Pod, old: Pod | None) -> list[str]:
        """One error for each change that the request's user may not make."""
        user = request.user_info
        changes = trust.refused_changes(pod, old, user, self._users)
        if not changes:
            return []
        space = await self._namespaces.get(pod.metadata.namespace)
        matched = match(self._profiles.list(), pod.metadata.labels, space.metadata.labels if space else None)
        try:
            changes = trust.without_granted(changes, pod, matched.profiles)
        except MutationError as error:
            log.warning("A profile grants no trusted key", pod=f"{request.namespace}/{request.name}", err=error)
        return trust.errors(changes, user, self._users)

    def errors_of_binding(self, request: WebhookRequest) -> list[str]:
        """One error for each trusted key in the Binding: the API server copies its annotations and labels to the pod,
        without a request for the pod itself. Profiles grant nothing here."""
        changes = trust.refused_changes(request.decode(Pod), None, request.user_info, self._users)
        return trust.errors(changes, request.user_info, self._users)


class _StepRefused(Exception):
    """Ends the steps; the text is the message of the response."""


class ValidatePod(WebhookHandler):
    """`/validate-pod`. The first failing step refuses the pod."""

    path, gate = "/validate-pod", "PodValidatingWebhook"
    resources = frozenset({("", "pods", "")})

    def __init__(self, context: ManagerContext, evaluator: PodQuotaCheck | None = None) -> None:
        self._gate: Callable[[str], bool] = context.gates.enabled
        self._topology = shared(context)
        self._quotas = context.caches.informer(ElasticQuota)
        self._evaluator = evaluator
        if evaluator is None and context.gates.enabled("EnableQuotaAdmission"):
            self._evaluator = QuotaEvaluator(context)
        self._enhanced = EnhancedSource(context)
        self._trusted_keys = TrustedKeys(context)
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation not in (CREATE, UPDATE):
            return AllowResponse()
        pod = request.decode(Pod)
        old = request.decode_old(Pod) if request.operation == UPDATE else None
        pod.metadata.namespace = pod.metadata.namespace or request.namespace
        try:
            await self._steps(request, pod, old)
        except _StepRefused as error:
            return DenyResponse(str(error))
        return AllowResponse()

    async def _steps(self, request: WebhookRequest, pod: Pod, old: Pod | None) -> None:
        async with self._step(request, "ClusterColocationProfile") as errors:
            errors += forbidden_annotations(pod)
            if not errors:
                errors += class_errors(
                    pod, old, priority_label_may_change=self._gate("ColocationProfileSkipValidatingPriority")
                )
        if self._gate("ValidatePodTrustedKeys"):
            async with self._step(request, "TrustedKeys") as errors:
                errors += await self._trusted_keys.errors(request, pod, old)
        quota = self._quota_of(pod)
        async with self._step(request, "QuotaMetaChecker") as errors:
            errors += change_errors(pod, old) if old is not None else []
            if not errors and not self._gate("SupportParentQuotaSubmitPod"):
                errors += submission_errors(self._topology.tree, quota)
        if self._evaluator is not None and self._gate("EnableQuotaAdmission"):
            changed = old is None or (
                self._gate("EnableQuotaAdmissionOnUpdate") and quota != self._quota_of(old, pod.metadata.namespace)
            )
            if changed and quota not in UNCOUNTED:
                async with self._step(request, "EvaluateQuota") as errors:
                    errors += await self._evaluate(self._evaluator, pod, quota, bool(request.dry_run))
        if self._gate("ValidatePodDeviceResource"):
            async with self._step(request, "DeviceResource") as errors:
                errors += device_errors(pod)
        if self._gate("EnablePodEnhancedValidator"):
            async with self._step(request, "EnhancedValidation") as errors:
                rules = await self._enhanced.rules()
                errors += enhanced.check(rules, pod.metadata.labels, pod.metadata.namespace)

    @asynccontextmanager
    async def _step(self, request: WebhookRequest, plugin: str) -> AsyncIterator[list[str]]:
        """One measured step. It refuses the pod if it has added errors to the list."""
        errors: list[str] = []
        with self._metrics.plugin(VALIDATE, "pod", request.operation, plugin) as outcome:
            yield errors
            outcome.rejected = bool(errors)
        if errors:
            raise _StepRefused(aggregate(errors))

    def _quota_of(self, pod: Pod, namespace: str = "") -> str:
        return quota_of_pod(
            pod.metadata.labels.get(names.LABEL_QUOTA_NAME, ""),
            pod.metadata.namespace or namespace,
            exists=lambda space, name: self._quotas.get(f"{space}/{name}") is not None,
            bound=lambda space: [quota.metadata.name for quota in self._quotas.by_index(QUOTA_BY_NAMESPACE, space)],
            default_disabled=self._gate("DisableDefaultQuota"),
        )

    async def _evaluate(self, evaluator: PodQuotaCheck, pod: Pod, quota: str, dry_run: bool) -> list[str]:
        quotas = self._quotas.by_index(QUOTA_BY_NAME, quota)
        if len(quotas) != 1:
            return [f"quota {quota}: {len(quotas)} ElasticQuotas of this name, there must be one"]
        refusal = await evaluator.evaluate(pod, quotas[0], dry_run=dry_run)
        return [] if refusal is None else [refusal]


class ValidatePodKeys(WebhookHandler):
    """`/validate-pod-keys`: trusted keys in requests for subresources of pods, whose objects are whole pods."""

    path, gate = "/validate-pod-keys", "PodValidatingWebhook"
    resources = frozenset(
        ("", "pods", subresource.removeprefix("pods/")) for subresource in registrations.POD_SUBRESOURCES.split()
    )

    def __init__(self, context: ManagerContext) -> None:
        self._gate: Callable[[str], bool] = context.gates.enabled
        self._trusted_keys = TrustedKeys(context)

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation != UPDATE or not self._gate("ValidatePodTrustedKeys"):
            return AllowResponse()
        pod, old = request.decode(Pod), request.decode_old(Pod)
        pod.metadata.namespace = pod.metadata.namespace or request.namespace
        errors = await self._trusted_keys.errors(request, pod, old)
        return DenyResponse(aggregate(errors), code=403, reason="Forbidden") if errors else AllowResponse()


class ValidateBinding(WebhookHandler):
    """`/validate-pod-binding`: trusted keys, and users that may bind. Registered with the pod webhook's feature gate;
    the gates of both rules are checked per request."""

    path, gate = "/validate-pod-binding", "PodValidatingWebhook"
    resources = frozenset({("", "pods", "binding"), ("", "bindings", "")})

    def __init__(self, context: ManagerContext) -> None:
        options = context.options
        self._gate = context.gates.enabled
        self._pods = context.caches.informer(Pod)
        self._trusted_keys = TrustedKeys(context)
        self._metrics = WebhookMetrics.of(context.internal)
        self._scope = binding.BindingScope.read(
            user_names=options.binding_admission_user_name,
            dry_run=options.binding_admission_dry_run,
            namespaces=options.binding_admission_namespaces,
            excluded=options.binding_admission_exclude_namespaces,
            bypass_labels=options.binding_admission_bypass_labels,
            bypass_annotations=options.binding_admission_bypass_annotations,
        )

    async def handle(self, request: WebhookRequest) -> Response:
        user, namespace = request.user_info.username, request.namespace
        if request.operation == CREATE and self._gate("ValidatePodTrustedKeys"):
            errors = self._trusted_keys.errors_of_binding(request)
            if errors:
                return DenyResponse(aggregate(errors), code=403, reason="Forbidden")
        enabled = request.operation == CREATE and self._gate("BindingAdmissionWebhook")
        decision = binding.before_pod(self._scope, enabled=enabled, user=user, namespace=namespace)
        if decision is None:
            pod = self._pods.get(f"{namespace}/{request.name}")
            decision = binding.with_pod(self._scope, pod, user=user, namespace=namespace, name=request.name)
        if decision.counted:
            self._metrics.bindings.labels(decision.counted).inc()
            if decision.counted in ("denied", "dry_run"):
                log.info(
                    "Decided on a binding", decision=decision.counted, user=user, pod=f"{namespace}/{request.name}"
                )
        return AllowResponse() if decision.allowed else DenyResponse(decision.message, code=403, reason="Forbidden")
