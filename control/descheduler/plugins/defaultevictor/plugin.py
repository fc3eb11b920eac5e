"""The plugin: a filter, and an evict plugin that calls the Eviction API."""

from __future__ import annotations

from control.component.labeltext import parse_label_selector
from control.descheduler.framework.fit import fits_any
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.framework.plugin import EvictionFilterPlugin, EvictOptions, EvictPlugin
from control.descheduler.plugins.defaultevictor.args import MANDATORY, WITHOUT_BUDGETS, DefaultEvictorArgs
from control.descheduler.plugins.defaultevictor.protection import immovable, protected
from control.descheduler.state.pods import PodRecord
from koordlet.api.core import PodDisruptionBudget, PriorityClass
from koordlet.api.meta import SelectorError
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound, TooManyRequests

log = get_logger(__name__)

PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"


class DefaultEvictor(EvictionFilterPlugin, EvictPlugin):
    """See the package's text."""

    name = "DefaultEvictor"
    args_type = DefaultEvictorArgs
    strict_args = False

    def __init__(self, args: DefaultEvictorArgs, handle: PluginHandle) -> None:
        self._args = args
        self._handle = handle
        self._protections = args.protections()
        self._nodes = parse_label_selector(args.node_selector)
        self._budgets = handle.objects.informer(PodDisruptionBudget) if WITHOUT_BUDGETS in self._protections else None
        threshold = args.priority_threshold
        named = threshold is not None and threshold.name
        self._classes = handle.objects.informer(PriorityClass) if named else None

    def filter(self, pod: PodRecord) -> str | None:
        args, annotations = self._args, pod.pod.metadata.annotations
        if ANNOTATION_DESCHEDULER_EVICT in annotations:
            return None
        if args.no_eviction_policy == MANDATORY and PREFER_NO_EVICTION in annotations:
            return "pod must not be evicted"
        threshold, problem = self._threshold()
        refusal = immovable(pod) or problem or protected(pod, self._protections, threshold)
        if refusal is not None:
            return refusal
        if args.label_selector is not None and not args.label_selector.matches(pod.pod.metadata.labels):
            return "labels of the pod do not match"
        if self._budgets is not None and not self._has_budget(pod):
            return "pod has no PodDisruptionBudget"
        return self._too_few_replicas(pod) or self._too_young(pod)

    def pre_eviction_filter(self, pod: PodRecord) -> str | None:
        if self._args.node_fit and not fits_any(pod, self._handle.state.ready_nodes(self._nodes)):
            return "pod fits no other node"
        return None

    def _threshold(self) -> tuple[int | None, str | None]:
        """(priority from which pods are protected, why it is not known)."""
        threshold = self._args.priority_threshold
        if threshold is None or self._classes is None:
            return (threshold.value if threshold is not None else None), None
        priority_class = self._classes.get(threshold.name)
        if priority_class is None:
            return None, f"PriorityClass {threshold.name} does not exist"
        return priority_class.value, None

    def _has_budget(self, pod: PodRecord) -> bool:
        for budget in self._budgets.store if self._budgets is not None else ():
            selector = budget.spec.selector
            if budget.metadata.namespace != pod.namespace or selector is None:
                continue
            try:
                if selector.matches(pod.pod.metadata.labels):
                    return True
            except SelectorError:
                continue  # such a budget protects no pod
        return False

    def _too_few_replicas(self, pod: PodRecord) -> str | None:
        """Of a pod with several owners the size is not known."""
        owners = pod.pod.metadata.owner_references
        if self._args.min_replicas <= 1 or len(owners) != 1:
            return None
        count = len(self._handle.state.owned_by(owners[0].uid))
        return f"owner has fewer than {self._args.min_replicas} pods" if count < self._args.min_replicas else None

    def _too_young(self, pod: PodRecord) -> str | None:
        """A pod that no kubelet has started has no age."""
        age, started = self._args.min_pod_age, pod.pod.status.start_time
        if age is None:
            return None
        if started is not None and self._handle.clock.now() - started.timestamp() >= age.seconds:
            return None
        return f"pod is younger than {age}"

    async def evict(self, pod: PodRecord, options: EvictOptions) -> bool:
        """Request the eviction of exactly this pod; budgets are checked by the API server."""
        counted = self._handle.metrics.evicted
        labels = (options.plugin, pod.namespace, pod.node)
        delete_options = options.delete_options
        try:
            await self._handle.client.evict(
                pod.name,
                pod.namespace,
                uid=pod.uid,
                grace_seconds=delete_options.grace_period_seconds if delete_options else None,
            )
        except KubeError as error:
            log.warning("Cannot evict pod", pod=pod.key, node=pod.node, why=_explained(error), err=error)
            counted.labels("error", *labels).inc()
            return False
        counted.labels("success", *labels).inc()
        log.info("Evicted pod", pod=pod.key, node=pod.node, plugin=options.plugin, reason=options.reason)
        self._handle.events.normal(pod.pod, "Descheduled", f"pod evicted by {options.reason or options.plugin}")
        return True


def _explained(error: KubeError) -> str:
    if isinstance(error, TooManyRequests):
        return "a PodDisruptionBudget or the API server does not allow it now"
    if isinstance(error, NotFound):
        return "pod not found"
    return "the API server refused"
