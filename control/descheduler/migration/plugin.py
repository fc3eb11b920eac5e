"""The plugin MigrationController: filters pods, and evicts one by creating a PodMigrationJob (spec 07 §11.2)."""

from __future__ import annotations

import uuid
from typing import ClassVar

from control.component.labeltext import parse_label_selector
from control.descheduler.framework.fit import fits_any
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.framework.plugin import EvictionFilterPlugin, EvictOptions, EvictPlugin
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.migration import shared
from control.descheduler.state.pods import PodRecord
from koordlet.api.crs.migration import PodMigrationJob, PodMigrationJobSpec
from koordlet.api.meta import ObjectMeta, ObjectReference
from koordlet.api.names import ANNOTATION_EVICT_REASON, ANNOTATION_EVICT_TRIGGER, ANNOTATION_JOB_CREATED_BY
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError

log = get_logger(__name__)


class MigrationController(EvictionFilterPlugin, EvictPlugin):
    """See the module text."""

    name: ClassVar[str] = "MigrationController"
    args_type = MigrationControllerArgs

    def __init__(self, args: MigrationControllerArgs, handle: PluginHandle) -> None:
        self._args = args
        self._client, self._clock = handle.client, handle.clock
        self._state = handle.state
        self._nodes = parse_label_selector(args.node_selector)
        self._migration = shared(args, handle)

    async def start(self) -> None:
        await self._migration.start()

    async def stop(self) -> None:
        await self._migration.stop()

    def filter(self, pod: PodRecord) -> str | None:
        migration = self._migration
        return migration.rules().refused_for_plugin(pod.pod, migration.view, migration.moving()) or None

    def pre_eviction_filter(self, pod: PodRecord) -> str | None:
        args = self._args
        if not args.node_fit or args.skips("NodeFit"):
            return None
        nodes = self._state.ready_nodes(self._nodes)
        return None if fits_any(pod, nodes) else "it fits no other node"

    async def evict(self, pod: PodRecord, options: EvictOptions) -> bool:
        args, migration = self._args, self._migration
        if args.dry_run:
            log.info("Dry run: would migrate a pod", pod=pod.key, node=pod.node, reason=options.reason)
            return True
        refusal = self.filter(pod) or self.pre_eviction_filter(pod)
        if refusal is None and migration.limiter.exceeded(pod.pod, self._clock.monotonic()):
            refusal = "the evictions of its workload or namespace are limited in time"
        if refusal is not None:
            log.info("Not migrating a pod", pod=pod.key, plugin=options.plugin, why=refusal)
            return False
        try:
            created = await self._client.create(job_for(pod, options, args, migration.process_id))
        except KubeError as error:
            log.warning("Cannot create a PodMigrationJob", pod=pod.key, err=error)
            return False
        migration.book.put(created)
        log.info("Created a PodMigrationJob", pod=pod.key, job=created.metadata.name, reason=options.reason)
        return True


def job_for(pod: PodRecord, options: EvictOptions, args: MigrationControllerArgs, process_id: str) -> PodMigrationJob:
    """The job that moves the pod (spec 07 §11.2-5)."""
    return PodMigrationJob(
        metadata=ObjectMeta(
            name=str(uuid.uuid4()),
            annotations={
                ANNOTATION_EVICT_REASON: options.reason,
                ANNOTATION_EVICT_TRIGGER: options.plugin,
                ANNOTATION_JOB_CREATED_BY: process_id,
            },
        ),
        spec=PodMigrationJobSpec(
            mode=args.default_job_mode,
            ttl=args.default_job_ttl,
            pod_ref=ObjectReference(namespace=pod.namespace, name=pod.name, uid=pod.uid),
            delete_options=options.delete_options or args.default_delete_options,
        ),
    )
