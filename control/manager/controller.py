"""What a controller is: a name, what it watches, and what it does about one key.

    class NodeSLOController(Controller):
        name = "nodeslo"
        def __init__(self, context): super().__init__(context); self.nodes = context.caches.informer(Node)
        def watch(self): self.nodes.add_handler(on_add=lambda node: self.queue.add(node.metadata.name))
        async def reconcile(self, key): ...

Controllers are built on every replica, before caches start, and run on the leader only: `run` calls `watch` when the
caches hold their first lists (`add_handler` tells what is there already) and then works on one key at a time. A
reconcile that raises is logged, counted and tried again with back-off (5 ms doubling to 1000 s, as client-go does);
one that returns seconds is repeated after them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from control.manager.context import Context
from koordlet.app.metrics import MetricSet
from koordlet.app.periodic import is_cancelled
from koordlet.app.turns import give_way
from koordlet.kube import WorkQueue

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ControllerMetrics(MetricSet):
    """The families that dashboards of controller-runtime know."""

    def __init__(self, registry: CollectorRegistry) -> None:
        one = ["controller"]
        self.total = Counter(
            "controller_runtime_reconcile_total", "Reconciles by result.", [*one, "result"], registry=registry
        )
        self.errors = Counter(
            "controller_runtime_reconcile_errors_total", "Reconciles that failed.", one, registry=registry
        )
        self.seconds = Histogram(
            "controller_runtime_reconcile_time_seconds", "Time a reconcile took.", one, buckets=_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self.active = Gauge("controller_runtime_active_workers", "Reconciles under way.", one, registry=registry)
        self.workers = Gauge(
            "controller_runtime_max_concurrent_reconciles", "Reconciles that may run at once.", one, registry=registry
        )


class Controller(ABC):
    """See the module text."""

    name: ClassVar[str]

    def __init__(self, context: Context) -> None:
        self.context = context
        self.queue: WorkQueue[str] = WorkQueue(self.name, clock=context.clock, registry=context.framework)
        self._metrics = ControllerMetrics.of(context.framework)

    @abstractmethod
    def watch(self) -> None:
        """Register handlers on the informers got in `__init__` that add keys to the queue; called once."""

    @abstractmethod
    async def reconcile(self, key: str) -> float | None:
        """Make the world right for one key; seconds after which to look again, or None. Raises to be tried again."""

    async def run(self) -> None:
        """Work for ever; ended by cancellation."""
        self._metrics.workers.labels(self.name).set(1)
        try:
            self.watch()
            await self.queue.work(self.reconcile_once)
        finally:
            await self.queue.shutdown()

    async def reconcile_once(self, key: str) -> float | None:
        """`reconcile`, measured. A queue of many keys gives way to webhooks between two of them."""
        await give_way()
        begun, result = self.context.clock.monotonic(), "error"
        self._metrics.active.labels(self.name).inc()
        try:
            again = await self.reconcile(key)
            result = "success" if again is None else "requeue_after"
            return again
        except BaseException as error:
            if is_cancelled(error):
                result = "cancelled"
            else:
                self._metrics.errors.labels(self.name).inc()
            raise
        finally:
            self._metrics.active.labels(self.name).dec()
            self._metrics.total.labels(self.name, result).inc()
            self._metrics.seconds.labels(self.name).observe(self.context.clock.monotonic() - begun)
