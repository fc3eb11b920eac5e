"""One hook call from any protocol: call the plugins, and write the pod's settings to the kernel before the answer is
sent.

Bounds: a call needs one node view, which is used again for `VIEW_TTL_S`, and one round of the pod-following strategies
for its pod only, whatever else runs on the node. After a round there is a pause as long as the round, at most
`MAX_PAUSE_S`, so that a burst of calls leaves time for other work; calls during the pause share the next round. A call
waits for its round at most its timeout. After that, with policy Ignore it answers (the next round sets what is
missing), with Fail it fails. Below systemd's slices the creation of a container has a round too: systemd wrote its own
values into the pod's slice again when the sandbox's scope appeared in it.

Without a protocol, as in tests and in other code of koordlet:

    answer = await calls.answer(HookStage.PRE_RUN_POD_SANDBOX, HookContext(pod_of(...)))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.runtimehooks.announcedpods import AnnouncedPods
from koordlet.runtimehooks.stages import (
    NO_CHANGE,
    FailurePolicy,
    HookAnswer,
    HookContext,
    HookError,
    Hooks,
    HookStage,
)
from koordlet.system.cgroup.naming import is_slice

log = get_logger(__name__)

VIEW_TTL_S = 0.05
MAX_PAUSE_S = 0.02
ROUND_TIMEOUT_S = 1.0
"""How long a call waits for its round by default; runtimes wait 2 s for a hook and for an NRI plugin."""
START_STAGES = (HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_CREATE_CONTAINER)
"""Stages of a pod that the kubelet may not list yet."""
END_STAGES = (HookStage.POST_STOP_POD_SANDBOX, HookStage.PRE_REMOVE_RUN_POD_SANDBOX)
ALL_PODS = "all pods"
ANNOUNCED = "announced pods"
"""The two kinds of rounds; each has its own timer and pause."""
STOPPING = "koordlet stops"


class HookCalls:
    """`view` returns the node now; `follow` does one round of the strategies that follow pods, `follow_announced` one
    for the given pods only (None: `follow` is used instead). `view` reads memory, the rounds also the kernel files that
    they set. An exception of one of them fails the calls that wait for it."""

    def __init__(
        self,
        hooks: Hooks,
        announced: AnnouncedPods,
        view: Callable[[], NodeView],
        follow: Callable[[], object],
        registries: Registries,
        *,
        follow_announced: Callable[[Sequence[PodView]], object] | None = None,
        round_timeout: float = ROUND_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hooks = hooks
        self.announced = announced
        self._view = view
        self._follow = follow
        self._registries = registries
        self._follow_announced = follow_announced or (lambda pods: self._follow())
        self._round_timeout = round_timeout
        self._clock = clock
        self._last_view: tuple[float, NodeView] | None = None
        self._round: asyncio.Future[str] | None = None
        """The next round for announced pods; its result is the cause of its failure, or ""."""
        self._waiting: dict[str, PodView] = {}
        """UID -> pod of that round."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Of the next round of each kind."""
        self._closed = False
        self._earliest: dict[str, float] = {}
        """When the next round of each kind may begin."""
        registries.view("runtime_hook_newborn_pods", lambda: [((), len(announced))])

    async def answer(
        self, stage: HookStage, context: HookContext, *, protocol: str = "library", seconds: float | None = None
    ) -> HookAnswer:
        """The answer of the hooks. `seconds`: time until the caller's deadline. Raises HookError with policy Fail."""
        status = "failed"
        try:
            answer = self._call_hooks(stage, context)
            late = await self._settle(stage, context, seconds)
            status = "late" if late else "answered"
            if late and self.hooks.policy is FailurePolicy.FAIL:
                raise HookError(f"{context.key}: {late}")
            return answer
        finally:
            self._registries.count("runtime_hook_calls_total", protocol, stage.value, status)

    def _call_hooks(self, stage: HookStage, context: HookContext) -> HookAnswer:
        if not self.hooks.names(stage):
            return NO_CHANGE
        try:
            view = self._recent_view()
        except Exception as error:  # koordlet's own fault: with policy Ignore it must not fail the pod
            log.exception("No node view for a hook", error=repr(error))
            if self.hooks.policy is FailurePolicy.FAIL:
                raise HookError(f"{context.key}: no node view: {error!r}") from error
            return NO_CHANGE
        return self.hooks.answer(stage, context, view)

    def follow_soon(self) -> None:
        """Start a round for all pods soon; no call waits for it."""
        if not self._closed and ALL_PODS not in self._timers:
            self._timers[ALL_PODS] = self._schedule(ALL_PODS, self._run_for_all)

    async def close(self) -> None:
        """Start no further rounds: koordlet is about to restore all settings."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._round is not None and not self._round.done():
            self._round.set_result(STOPPING)

    def _recent_view(self) -> NodeView:
        now = self._clock()
        if self._last_view is None or now - self._last_view[0] > VIEW_TTL_S:
            self._last_view = (now, self._view())
        return self._last_view[1]

    async def _settle(self, stage: HookStage, context: HookContext, seconds: float | None) -> str:
        """Wait until the pod's settings are in the kernel. Returns why they are not, or ""."""
        meta = context.pod.meta
        if stage in END_STAGES:
            self.announced.remove(meta.uid)
            return ""
        if stage not in START_STAGES:
            return ""
        is_new = self.announced.add(context.pod)
        may_be_overwritten = stage is HookStage.PRE_RUN_POD_SANDBOX or is_slice(meta.cgroup_dir)
        if not is_new and not (may_be_overwritten and self.announced.has_directory(context.pod)):
            return ""
        pod = self.announced.latest(context.pod)
        if self._round is None and not self._closed and self._pause(ANNOUNCED) <= 0:
            return self._run(ANNOUNCED, lambda: self._follow_announced((pod,)))
        timeout = self._round_timeout if seconds is None else min(self._round_timeout, seconds / 2)
        try:
            return await asyncio.wait_for(asyncio.shield(self._shared_round(pod)), timeout)
        except TimeoutError:
            log.once("late", "A hook answered before its pod was set up", subject=context.key, seconds=timeout)
            return f"settings not in place within {timeout:g} s"

    def _shared_round(self, pod: PodView) -> asyncio.Future[str]:
        """The round after the pause, with this pod added."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
            if self._closed:
                self._round.set_result(STOPPING)
            else:
                self._timers[ANNOUNCED] = self._schedule(ANNOUNCED, self._run_for_announced)
        self._waiting[pod.meta.uid] = pod
        return self._round

    def _schedule(self, kind: str, fn: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(self._pause(kind), 0.0), fn)

    def _pause(self, kind: str) -> float:
        """Seconds until a round of this kind may begin."""
        return self._earliest.get(kind, float("-inf")) - self._clock()

    def _run_for_announced(self) -> None:
        finished = self._round
        pods = tuple(self._waiting.values())
        self._round = None
        self._waiting = {}
        cause = self._run(ANNOUNCED, lambda: self._follow_announced(pods))
        if finished is not None and not finished.done():
            finished.set_result(cause)

    def _run_for_all(self) -> None:
        del self._timers[ALL_PODS]
        self._run(ALL_PODS, self._follow)

    def _run(self, kind: str, fn: Callable[[], object]) -> str:
        """Run a round now. Returns the cause of its failure, or ""."""
        cause = ""
        started = self._clock()
        try:
            fn()
        except Exception as error:  # passed to the calls that wait, which answer by their policy
            log.exception("Round for a new pod failed", error=repr(error))
            cause = f"settings could not be decided: {error!r}"
        now = self._clock()
        self._earliest[kind] = now + min(now - started, MAX_PAUSE_S)
        return cause
