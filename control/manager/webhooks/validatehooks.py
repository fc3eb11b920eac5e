"""The validating webhooks of pods and of their bindings: caches in, the rules, an answer out (spec 04 §12, §13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from control.manager.caches import QUOTA_BY_NAME, QUOTA_BY_NAMESPACE
from control.manager.context import Context
from control.manager.quota import shared
from control.manager.quota.evaluation import Evaluator
from control.manager.quota.resolve import change_errors, quota_of_pod, submission_errors
from control.manager.webhooks import binding, enhanced
from control.manager.webhooks.devices import device_errors
from control.manager.webhooks.errors import aggregate
from control.manager.webhooks.podvalidating import class_errors, forbidden_annotations
from control.manager.webhookserver.admission import (
    CREATE,
    UPDATE,
    AdmissionRequest,
    Allowed,
    Denied,
    Handler,
    Response,
)
from control.manager.webhookserver.metrics import VALIDATE, WebhookMetrics
from koordlet.api import names
from koordlet.api.core import ConfigMap, Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound

log = get_logger(__name__)

UNCOUNTED = frozenset({"", names.DEFAULT_QUOTA, names.SYSTEM_QUOTA, names.ROOT_QUOTA})
"""Quotas under which pods are not counted at admission."""


class QuotaEvaluator(Protocol):
    """Counts a pod against its quota, and reserves what it asks for (spec 04 §17)."""

    async def evaluate(self, pod: Pod, quota: ElasticQuota, *, dry_run: bool) -> str | None:
        """None when there is room (now taken, unless it is a dry run), else why the pod is refused."""
        ...


class EnhancedSource:
    """The enhanced validator's ConfigMap, read at first use and again once it is older than the interval."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = enhanced.EnhancedConfig()
        self._due: float | None = None
        self._lock = asyncio.Lock()

    async def rules(self) -> enhanced.Rules:
        """The rules in force. One that can't be read or parsed leaves the last good ones."""
        clock, options = self._context.clock, self._context.options
        async with self._lock:
            if self._due is None or clock.monotonic() >= self._due:
                self._due = clock.monotonic() + options.pod_enhanced_validator_reconcile_interval
                name = options.pod_enhanced_validator_config_name
                namespace = options.pod_enhanced_validator_config_namespace
                try:
                    found = await self._context.client.get(ConfigMap, name, namespace)
                    problem = self._config.update(found.data)
                except NotFound:
                    problem = self._config.update(None)
                except KubeError as error:
                    problem = str(error)
                if problem is not None:
                    log.error(
                        "Rules of the enhanced validator stay as they were",
                        configmap=f"{namespace}/{name}",
                        err=problem,
                    )
        return self._config.rules


class _Refused(Exception):
    """Ends the steps; the text is the answer."""


class ValidatePod(Handler):
    """`/validate-pod`. The first failing step refuses."""

    path, gate = "/validate-pod", "PodValidatingWebhook"
    resources = frozenset({("", "pods", "")})

    def __init__(self, context: Context, evaluator: QuotaEvaluator | None = None) -> None:
        self._gate: Callable[[str], bool] = context.gates.enabled
        self._topology = shared(context)
        self._quotas = context.caches.informer(ElasticQuota)
        self._evaluator = evaluator
        if evaluator is None and context.gates.enabled("EnableQuotaAdmission"):
            self._evaluator = Evaluator(context)
        self._enhanced = EnhancedSource(context)
        self._metrics = WebhookMetrics.of(context.internal)

    async def handle(self, request: AdmissionRequest) -> Response:
        if request.operation not in (CREATE, UPDATE):
            return Allowed()
        pod = request.decode(Pod)
        old = request.decode_old(Pod) if request.operation == UPDATE else None
        pod.metadata.namespace = pod.metadata.namespace or request.namespace
        try:
            await self._steps(request, pod, old)
        except _Refused as refused:
            return Denied(str(refused))
        return Allowed()

    async def _steps(self, request: AdmissionRequest, pod: Pod, old: Pod | None) -> None:
        async with self._step(request, "ClusterColocationProfile") as errors:
            errors += forbidden_annotations(pod)
            if not errors:
                errors += class_errors(
                    pod, old, priority_label_may_change=self._gate("ColocationProfileSkipValidatingPriority")
                )
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
    async def _step(self, request: AdmissionRequest, plugin: str) -> AsyncIterator[list[str]]:
        """One measured step; what it has put into the list at its end refuses the pod."""
        errors: list[str] = []
        with self._metrics.plugin(VALIDATE, "pod", request.operation, plugin) as verdict:
            yield errors
            verdict.rejected = bool(errors)
        if errors:
            raise _Refused(aggregate(errors))

    def _quota_of(self, pod: Pod, namespace: str = "") -> str:
        return quota_of_pod(
            pod.metadata.labels,
            pod.metadata.namespace or namespace,
            exists=lambda space, name: self._quotas.get(f"{space}/{name}") is not None,
            bound=lambda space: [each.metadata.name for each in self._quotas.by_index(QUOTA_BY_NAMESPACE, space)],
            default_disabled=self._gate("DisableDefaultQuota"),
        )

    async def _evaluate(self, evaluator: QuotaEvaluator, pod: Pod, quota: str, dry_run: bool) -> list[str]:
        found = self._quotas.by_index(QUOTA_BY_NAME, quota)
        if len(found) != 1:
            return [f"quota {quota}: {len(found)} ElasticQuotas of this name, there must be one"]
        refusal = await evaluator.evaluate(pod, found[0], dry_run=dry_run)
        return [] if refusal is None else [refusal]


class ValidateBinding(Handler):
    """`/validate-pod-binding`; goes with the pod webhook's gate, its own gate is asked at each request."""

    path, gate = "/validate-pod-binding", "PodValidatingWebhook"
    resources = frozenset({("", "pods", "binding")})

    def __init__(self, context: Context) -> None:
        options = context.options
        self._gate = context.gates.enabled
        self._pods = context.caches.informer(Pod)
        self._metrics = WebhookMetrics.of(context.internal)
        self._scope = binding.Scope.read(
            user_names=options.binding_admission_user_name,
            dry_run=options.binding_admission_dry_run,
            namespaces=options.binding_admission_namespaces,
            excluded=options.binding_admission_exclude_namespaces,
            bypass_labels=options.binding_admission_bypass_labels,
            bypass_annotations=options.binding_admission_bypass_annotations,
        )

    async def handle(self, request: AdmissionRequest) -> Response:
        user, namespace = request.user_info.username, request.namespace
        enabled = request.operation == CREATE and self._gate("BindingAdmissionWebhook")
        decision = binding.before_pod(self._scope, enabled=enabled, user=user, namespace=namespace)
        if decision is None:
            pod = self._pods.get(f"{namespace}/{request.name}")
            decision = binding.with_pod(self._scope, pod, user=user, namespace=namespace, name=request.name)
        if decision.counted:
            self._metrics.bindings.labels(decision.counted).inc()
            if decision.counted in ("denied", "dry_run"):
                log.info("Binding judged", decision=decision.counted, user=user, pod=f"{namespace}/{request.name}")
        return Allowed() if decision.allowed else Denied(decision.message, code=403, reason="Forbidden")
