"""The base class of controllers: a name, the objects it watches, and the reconciliation of one key.

    class NodeSLOController(ManagerController):
        name = "nodeslo"
        def __init__(self, context): super().__init__(context); self.nodes = context.caches.informer(Node)
        def watch(self): self.nodes.add_handler(on_add=lambda node: self.queue.add(node.metadata.name))
        async def reconcile(self, key): ...

Controllers are constructed on every replica, before the caches start, and run on the leader only. `run` calls `watch`
when the caches hold their first lists (`add_handler` calls `on_add` for the objects that exist already) and then
processes one key at a time. A reconcile that raises is logged, counted and retried with back-off (5 ms doubling to
1000 s, as client-go does); one that returns seconds is repeated after that time. Namespaces take turns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from control.manager.context import ManagerContext
from koordlet.app.loopslice import yield_to_loop
from koordlet.app.metrics import MetricSet, counter, gauge, histogram
from koordlet.app.periodic import is_cancelled
from koordlet.kube import WorkQueue
from koordlet.kube.turns import namespace_of

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ControllerMetrics(MetricSet):
    """The metric families of controller-runtime, for its dashboards."""

    total = counter("controller_runtime_reconcile_total", "Reconciles by result.", "controller", "result")
    errors = counter("controller_runtime_reconcile_errors_total", "Reconciles that failed.", "controller")
    seconds = histogram(
        "controller_runtime_reconcile_time_seconds", "Duration of a reconcile.", "controller", buckets=_BUCKETS
    )
    active = gauge("controller_runtime_active_workers", "Reconciles in progress.", "controller")
    workers = gauge(
        "controller_runtime_max_concurrent_reconciles", "Maximum number of concurrent reconciles.", "controller"
    )


class ManagerController(ABC):
    """See the module docstring."""

    name: ClassVar[str]

    def __init__(self, context: ManagerContext) -> None:
        self.context = context
        self.queue: WorkQueue[str] = WorkQueue(
            self.name, share_of=namespace_of, clock=context.clock, registry=context.framework
        )
        self._metrics = ControllerMetrics.of(context.framework)

    @abstractmethod
    def watch(self) -> None:
        """Register handlers that add keys to the queue, on the informers requested in `__init__`; called once."""

    @abstractmethod
    async def reconcile(self, key: str) -> float | None:
        """Bring the cluster to the desired state for one key.

        Returns the seconds after which to reconcile the key again, or None. An exception causes a retry with back-off.
        """

    async def run(self) -> None:
        """Process keys until cancelled."""
        self._metrics.workers.labels(self.name).set(1)
        try:
            self.watch()
            await self.queue.work(self.reconcile_once)
        finally:
            await self.queue.shutdown()

    async def reconcile_once(self, key: str) -> float | None:
        """`reconcile` with metrics. Between two keys it yields to webhook requests."""
        await yield_to_loop()
        started, result = self.context.clock.monotonic(), "error"
        self._metrics.active.labels(self.name).inc()
        try:
            requeue_after_s = await self.reconcile(key)
            result = "success" if requeue_after_s is None else "requeue_after"
            return requeue_after_s
        except BaseException as error:
            if is_cancelled(error):
                result = "cancelled"
            else:
                self._metrics.errors.labels(self.name).inc()
            raise
        finally:
            self._metrics.active.labels(self.name).dec()
            self._metrics.total.labels(self.name, result).inc()
            self._metrics.seconds.labels(self.name).observe(self.context.clock.monotonic() - started)
