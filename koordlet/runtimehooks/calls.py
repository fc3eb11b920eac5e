"""One hook call from any protocol: ask the plugins, and have the kernel hold what the pod gets before the answer goes.

Bounds: a call costs one look at the node's picture in memory and one round of the pod-following strategies. Calls that
come together share them: a picture serves PICTURE_SECONDS, and after a round comes a rest of RESTS times what it took,
at most GAP_SECONDS: on a small node a call hardly waits, on a full one a burst leaves time for all else. A round that
does not come within the call's patience is not waited for: with policy Ignore the runtime goes on (the next round sets
what is missing), with Fail it is told.

Without a protocol, as tests and other code of koordlet do:

    answer = await calls.answer(Stage.PRE_RUN_POD_SANDBOX, HookContext(pod_of(...)))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from koordlet.app.logging import get_logger
from koordlet.metrics import Registries
from koordlet.qosmanager.view import NodeView
from koordlet.runtimehooks.hooks import NOTHING, Answer, FailurePolicy, HookContext, HookError, Hooks, Stage
from koordlet.runtimehooks.newborns import Newborns

log = get_logger(__name__)

PICTURE_SECONDS = 0.05
GAP_SECONDS = 0.02
RESTS = 3
PATIENCE_SECONDS = 1.0
"""What a call waits for its round unless told; runtimes wait two seconds for a hook and for an NRI plugin."""
BIRTHS = (Stage.PRE_RUN_POD_SANDBOX, Stage.PRE_CREATE_CONTAINER)
"""Stages at which a pod is there that the kubelet may not show yet."""
DEATHS = (Stage.POST_STOP_POD_SANDBOX, Stage.PRE_REMOVE_RUN_POD_SANDBOX)


class HookCalls:
    """`picture` is the node now, `follow` one round of the strategies that follow pods; both read memory and, `follow`,
    the kernel files it sets. Either may raise; that fails the calls that wait for it."""

    def __init__(
        self,
        hooks: Hooks,
        newborns: Newborns,
        picture: Callable[[], NodeView],
        follow: Callable[[], object],
        registries: Registries,
        *,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hooks, self.newborns = hooks, newborns
        self._picture, self._follow, self._registries = picture, follow, registries
        self._patience, self._clock = patience, clock
        self._seen: tuple[float, NodeView] | None = None
        self._round: asyncio.Future[str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._next = float("-inf")
        """When a round may begin again."""
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
        self._next_round()

    async def close(self) -> None:
        """No round begins any more: what was set is about to be given back."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._round is not None and not self._round.done():
            self._round.set_result("koordlet stops")

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
        if not news and not (stage is Stage.PRE_RUN_POD_SANDBOX and self.newborns.placed(context.pod)):
            return ""
        patience = self._patience if seconds is None else min(self._patience, seconds / 2)
        try:
            return await asyncio.wait_for(asyncio.shield(self._next_round()), patience)
        except TimeoutError:
            log.once("late", "a hook answered before its pod was set up", subject=context.key, seconds=patience)
            return f"settings not in place within {patience:g} s"

    def _next_round(self) -> asyncio.Future[str]:
        """The round that has not begun yet; its result says what failed."""
        if self._round is None:
            loop = asyncio.get_running_loop()
            self._round = loop.create_future()
            if self._closed:
                self._round.set_result("koordlet stops")
            else:
                self._timer = loop.call_later(max(self._next - self._clock(), 0.0), self._run)
        return self._round

    def _run(self) -> None:
        waiting, self._round = self._round, None
        said, begun = "", self._clock()
        try:
            self._follow()
        except Exception as error:  # told to the calls that wait, which answer by their policy
            log.exception("round for a new pod failed", error=repr(error))
            said = f"settings could not be decided: {error!r}"
        now = self._clock()
        self._next = now + min(RESTS * (now - begun), GAP_SECONDS)
        if waiting is not None and not waiting.done():
            waiting.set_result(said)
