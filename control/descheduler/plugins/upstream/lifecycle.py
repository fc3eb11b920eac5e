"""Pods that are too old, restarted too often, or have failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from control.component.errors import invalid, required, unsupported
from control.descheduler.framework.plugin import DeschedulePlugin
from control.descheduler.plugins.upstream.common import (
    NamespacedArgs,
    UpstreamPlugin,
    has_owner_of,
    reasons_of,
    statuses,
)
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord

PHASES: Final = ("Running", "Pending", "Succeeded", "Failed", "Unknown")
POD_REASONS: Final = ("NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError")
WAITING_REASONS: Final = (
    *("PodInitializing", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError"),
    *("ErrImagePull", "CreateContainerError", "InvalidImageName"),
)
CRASH_LOOP: Final = "CrashLoopBackOff"


class PodLifeTimeArgs(NamespacedArgs):
    """Arguments of PodLifeTime. `states` are phases, reasons of pods or reasons why containers wait."""

    max_pod_life_time_seconds: int | None = None
    states: list[str] = msgspec.field(default_factory=list)
    including_init_containers: bool = False
    including_ephemeral_containers: bool = False

    def check(self, path: str) -> list[str]:
        errors = super().check(path)
        seconds = self.max_pod_life_time_seconds
        if seconds is None:
            errors.append(required(f"{path}.maxPodLifeTimeSeconds"))
        elif seconds < 0:
            errors.append(invalid(f"{path}.maxPodLifeTimeSeconds", seconds, "must not be negative"))
        known = (*PHASES, *POD_REASONS, *WAITING_REASONS)
        errors += [
            unsupported(f"{path}.states[{index}]", state, known)
            for index, state in enumerate(self.states)
            if state not in known
        ]
        if self.including_ephemeral_containers:
            errors.append(invalid(f"{path}.includingEphemeralContainers", True, "is not supported by this build"))
        return errors


class PodLifeTime(UpstreamPlugin, DeschedulePlugin):
    """Evicts pods that are older than a limit, the oldest first."""

    name = "PodLifeTime"
    args_type = PodLifeTimeArgs

    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        args: PodLifeTimeArgs = self._args
        limit = args.max_pod_life_time_seconds or 0
        now = self._handle.clock.now()
        pods = [
            pod
            for node in nodes
            for pod in node.pods.values()
            if now - pod.created > limit and self._in_state(pod) and self.chosen(pod)
        ]
        for pod in sorted(pods, key=lambda pod: (pod.created, pod.key)):
            await self.evict(pod, f"pod is older than {limit} s")

    def _in_state(self, pod: PodRecord) -> bool:
        args: PodLifeTimeArgs = self._args
        if not args.states:
            return True
        status = pod.pod.status
        states = {status.phase, status.reason}
        for container in statuses(pod, init=args.including_init_containers):
            if container.state.waiting is not None:
                states.add(container.state.waiting.reason)
        return not states.isdisjoint(args.states)


class RemovePodsHavingTooManyRestartsArgs(NamespacedArgs):
    """Arguments of RemovePodsHavingTooManyRestarts."""

    pod_restart_threshold: int = 0
    including_init_containers: bool = False
    states: list[str] = msgspec.field(default_factory=list)

    def check(self, path: str) -> list[str]:
        errors = super().check(path)
        if self.pod_restart_threshold < 1:
            errors.append(invalid(f"{path}.podRestartThreshold", self.pod_restart_threshold, "must be at least 1"))
        known = ("Running", CRASH_LOOP)
        errors += [
            unsupported(f"{path}.states[{index}]", state, known)
            for index, state in enumerate(self.states)
            if state not in known
        ]
        return errors


class RemovePodsHavingTooManyRestarts(UpstreamPlugin, DeschedulePlugin):
    """Evicts pods whose containers have restarted too often in total."""

    name = "RemovePodsHavingTooManyRestarts"
    args_type = RemovePodsHavingTooManyRestartsArgs

    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        args: RemovePodsHavingTooManyRestartsArgs = self._args
        for node in nodes:
            for pod in self.pods_of(node):
                restarts = sum(status.restart_count for status in statuses(pod, init=args.including_init_containers))
                if restarts >= args.pod_restart_threshold and self._in_state(pod):
                    await self.evict(pod, f"containers have restarted {restarts} times")

    def _in_state(self, pod: PodRecord) -> bool:
        args: RemovePodsHavingTooManyRestartsArgs = self._args
        if not args.states:
            return True
        waiting = {
            status.state.waiting.reason
            for status in statuses(pod, init=args.including_init_containers)
            if status.state.waiting is not None
        }
        return not {pod.pod.status.phase, *waiting}.isdisjoint(args.states)


class RemoveFailedPodsArgs(NamespacedArgs):
    """Arguments of RemoveFailedPods."""

    reasons: list[str] = msgspec.field(default_factory=list)
    exit_codes: list[int] = msgspec.field(default_factory=list)
    exclude_owner_kinds: list[str] = msgspec.field(default_factory=list)
    including_init_containers: bool = False
    min_pod_lifetime_seconds: int | None = None


class RemoveFailedPods(UpstreamPlugin, DeschedulePlugin):
    """Evicts pods in phase Failed."""

    name = "RemoveFailedPods"
    args_type = RemoveFailedPodsArgs

    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        for node in nodes:
            for pod in list(node.pods.values()):
                if pod.pod.status.phase == "Failed" and self._matches(pod) and self.chosen(pod):
                    await self.evict(pod, "pod has failed")

    def _matches(self, pod: PodRecord) -> bool:
        args: RemoveFailedPodsArgs = self._args
        age = self._handle.clock.now() - pod.created
        if args.min_pod_lifetime_seconds is not None and age < args.min_pod_lifetime_seconds:
            return False
        if has_owner_of(pod, args.exclude_owner_kinds):
            return False
        init = args.including_init_containers
        if args.reasons and reasons_of(pod, init=init).isdisjoint(args.reasons):
            return False
        codes = {
            status.state.terminated.exit_code
            for status in statuses(pod, init=init)
            if status.state.terminated is not None
        }
        return not args.exit_codes or not codes.isdisjoint(args.exit_codes)
