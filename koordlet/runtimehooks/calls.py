"""One hook call from any protocol: ask the plugins, and have the kernel hold what the pod gets before the answer goes.

Bounds: a call costs one look at the node's picture in memory, which serves PICTURE_SECONDS, and a round of the
pod-following strategies for its pod alone, whatever else runs on the node. After a round comes a rest as long as it
took, at most GAP_SECONDS, so that a burst leaves time for all else; calls that come during the rest share the next
round. A round that does not come within the call's patience is not waited for: with policy Ignore the runtime goes on
(the next round sets what is missing), with Fail it is told. Below systemd's slices a container's creation has a round,
too: systemd wrote its own values into the pod's slice once more when the sandbox's scope appeared in it.

Without a protocol, as tests and other code of koordlet do:

    answer = await calls.answer(Stage.PRE_RUN_POD_SANDBOX, HookContext(pod_of(...)))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.runtimehooks.announcedpods import Newborns
from koordlet.runtimehooks.stages import NOTHING, Answer, FailurePolicy, HookContext, HookError, Hooks, Stage
from koordlet.system.cgroup.naming import is_slice

log = get_logger(__name__)

PICTURE_SECONDS = 0.05
GAP_SECONDS = 0.02
PATIENCE_SECONDS = 1.0
"""What a call waits for its round unless told; runtimes wait two seconds for a hook and for an NRI plugin."""
BIRTHS = (Stage.PRE_RUN_POD_SANDBOX, Stage.PRE_CREATE_CONTAINER)
"""Stages at which a pod is there that the kubelet may not show yet."""
EVERYBODY, BORN = "everybody", "born"
STOPPING = "koordlet stops"
DEATHS = (Stage.POST_STOP_POD_SANDBOX, Stage.PRE_REMOVE_RUN_POD_SANDBOX)


class HookCalls:
    """`picture` is the node now, `follow` one round of the strategies that follow pods, `born` one for these pods alone
    (None: `follow` serves for that, too). All read memory and, but for `picture`, the kernel files they set. Each may
    raise; that fails the calls that wait for it."""

    def __init__(
        self,
        hooks: Hooks,
        newborns: Newborns,
        picture: Callable[[], NodeView],
        follow: Callable[[], object],
        registries: Registries,
        *,
        born: Callable[[Sequence[PodView]], object] | None = None,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hooks, self.newborns = hooks, newborns
        self._picture, self._follow, self._registries = picture, follow, registries
        self._born = born or (lambda pods: self._follow())
        self._patience, self._clock = patience, clock
        self._seen: tuple[float, NodeView] | None = None
        self._round: asyncio.Future[str] | None = None
        self._waiting: dict[str, PodView] = {}
        """By UID, whom that round is for."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Of `_round`, and of the round for everybody."""
        self._closed = False
        self._next: dict[str, float] = {}
        """When a round of each kind may begin again."""
        registries.view("runtime_hook_newborn_pods", lambda: [((), len(newborns))])

    async def answer(
        self, stage: Stage, context: HookContext, *, protocol: str = "library", seconds: float | None = None
    ) -> Answer:
        """What the hooks say; `seconds` are left until the caller gives up. Raises HookError with policy Fail."""
        status = "failed"
        try:
            answer = self._asked(stage, context)
            late = await self._settled(stage, context, seconds)
            status = "late" if late else "answered"
            if late and self.hooks.policy is FailurePolicy.FAIL:
                raise HookError(f"{context.key}: {late}")
            return answer
        finally:
            self._registries.count("runtime_hook_calls_total", protocol, stage.value, status)

    def _asked(self, stage: Stage, context: HookContext) -> Answer:
        if not self.hooks.names(stage):
            return NOTHING
        try:
            view = self._view()
        except Exception as error:  # our fault, which with policy Ignore is no pod's
            log.exception("no picture of the node for a hook", error=repr(error))
            if self.hooks.policy is FailurePolicy.FAIL:
                raise HookError(f"{context.key}: no picture of the node: {error!r}") from error
            return NOTHING
        return self.hooks.answer(stage, context, view)

    def soon(self) -> None:
        """A round of the pod-following strategies in a moment; nobody waits for it."""
        if not self._closed and EVERYBODY not in self._timers:
            self._timers[EVERYBODY] = self._in_turn(EVERYBODY, self._everybody)

    async def close(self) -> None:
        """No round begins any more: what was set is about to be given back."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._round is not None and not self._round.done():
            self._round.set_result(STOPPING)

    def _view(self) -> NodeView:
        now = self._clock()
        if self._seen is None or now - self._seen[0] > PICTURE_SECONDS:
            self._seen = (now, self._picture())
        return self._seen[1]

    async def _settled(self, stage: Stage, context: HookContext, seconds: float | None) -> str:
        """Wait until the kernel holds what the pod gets; why it was not awaited, empty when it was."""
        meta = context.pod.meta
        if stage in DEATHS:
            self.newborns.forget(meta.uid)
            return ""
        if stage not in BIRTHS:
            return ""
        news = self.newborns.add(context.pod)
        first = stage is Stage.PRE_RUN_POD_SANDBOX
        if not news and not ((first or is_slice(context.pod.meta.cgroup_dir)) and self.newborns.placed(context.pod)):
            return ""
        pod = self.newborns.best(context.pod)
        if self._round is None and not self._closed and self._rest(BORN) <= 0:
            return self._work(BORN, lambda: self._born((pod,)))
        patience = self._patience if seconds is None else min(self._patience, seconds / 2)
        try:
            return await asyncio.wait_for(asyncio.shield(self._shared_round(pod)), patience)
        except TimeoutError:
            log.once("late", "a hook answered before its pod was set up", subject=context.key, seconds=patience)
            return f"settings not in place within {patience:g} s"

    def _shared_round(self, pod: PodView) -> asyncio.Future[str]:
        """The round after the rest, for this pod too; its result says what failed."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
            if self._closed:
                self._round.set_result(STOPPING)
            else:
                self._timers[BORN] = self._in_turn(BORN, self._everyone_born)
        self._waiting[pod.meta.uid] = pod
        return self._round

    def _in_turn(self, kind: str, fn: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(self._rest(kind), 0.0), fn)

    def _rest(self, kind: str) -> float:
        """Seconds until a round of this kind may begin."""
        return self._next.get(kind, float("-inf")) - self._clock()

    def _everyone_born(self) -> None:
        waiting, self._round = self._round, None
        pods, self._waiting = tuple(self._waiting.values()), {}
        said = self._work(BORN, lambda: self._born(pods))
        if waiting is not None and not waiting.done():
            waiting.set_result(said)

    def _everybody(self) -> None:
        del self._timers[EVERYBODY]
        self._work(EVERYBODY, self._follow)

    def _work(self, kind: str, fn: Callable[[], object]) -> str:
        """A round, now; what failed."""
        said, begun = "", self._clock()
        try:
            fn()
        except Exception as error:  # told to the calls that wait, which answer by their policy
            log.exception("round for a new pod failed", error=repr(error))
            said = f"settings could not be decided: {error!r}"
        now = self._clock()
        self._next[kind] = now + min(now - begun, GAP_SECONDS)
        return said
