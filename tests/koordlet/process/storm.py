"""Chaos in a whole cluster: kill -9 of koordlet, API server, manager, scheduler and runtime proxy in any combination,
during outages of API server, kubelet and disk and steps of the clock, while pods come and go on the node and in the API
server.

After each turn everything is started again. Then the NodeSLO must become what the ConfigMap asks for, koordlet's tree
must hold what the specification's table says two rounds after koordlet has received it, and at the end no acknowledged
object may be missing. Everything random comes from one seed, except the kernel's timing.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.koordlet.process.chaos import ROUNDS, Chaos
from tests.koordlet.process.controlplane import CRDS, UNREACHABLE, ControlPlane, Ledger
from tests.koordlet.process.expected import documents
from tests.koordlet.process.fleet import differences, walk
from tests.koordlet.process.outages import (
    ClockStep,
    FullDisk,
    Outage,
    RefusedKubelet,
    SilentKubelet,
    StoppedApiServer,
)
from tests.koordlet.process.patience import until
from tests.koordlet.process.proxiedruntime import ProxiedRuntime
from tests.koordlet.process.scene import SLO
from tests.processmemory import resident_mib
from tests.steppedclock import SteppedClock

KOORDLET, API_SERVER, MANAGER, SCHEDULER, PROXY = "koordlet", "API server", "manager", "scheduler", "runtime proxy"
COMPONENTS = (KOORDLET, API_SERVER, MANAGER, SCHEDULER, PROXY)
KILLED, OUT, NEW_POLICY = 0.3, 0.25, 0.5
"""Chance of each component, of each outage and of a new policy in a turn."""
OUTAGES: tuple[type[Outage], ...] = (StoppedApiServer, SilentKubelet, RefusedKubelet, FullDisk, ClockStep)
LONGEST_S = 4.0
"""Of churn, in a turn."""
FIRST_STEP_S = 600.0
SNAPSHOTS = "--snapshot-interval=1s"
MARK = "tests.koordinator.sh/turn"


@dataclass
class Turn:
    """What happened in one, and how long the cluster took to be right again."""

    kills: list[str]
    outages: list[str]
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        happened = ", ".join([f"kill -9 {name}" for name in self.kills] + self.outages) or "churn"
        return f"{happened}; right after {self.seconds:.1f} s" if not self.wrong else f"{happened}; {self.wrong[0]}"


@dataclass
class Storm:
    """`chaos.scene` is not open yet. koordlet's state directory must be on a file system of its own."""

    chaos: Chaos
    plane: ControlPlane
    runtime: ProxiedRuntime
    clock: SteppedClock
    rng: random.Random
    say: Callable[[str], None]
    turns: list[Turn] = field(default_factory=list)
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Component -> MiB at the end of each turn in which it was not killed."""
    written: int = 0
    """Objects that the API server acknowledged."""
    unanswered: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        scene = self.chaos.scene
        self._outages: dict[type[Outage], Outage] = {
            StoppedApiServer: StoppedApiServer(scene),
            SilentKubelet: SilentKubelet(scene),
            RefusedKubelet: RefusedKubelet(scene),
            FullDisk: FullDisk(scene.view),
            ClockStep: ClockStep(self.clock, self.rng),
        }
        self._open: list[Outage] = []

    def run(self, pods: int, seconds: float) -> list[str]:
        """Random turns for so long; what was wrong, in words."""
        with self.opened(pods):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._random_turn()
        return self.wrong

    @contextmanager
    def opened(self, pods: int) -> Iterator[None]:
        """Everything runs meanwhile; afterwards it is stopped, and `wrong` is complete."""
        scene, plane, chaos = self.chaos.scene, self.plane, self.chaos
        chaos.policy = chaos.populate(pods)
        scene.open(None, cpus=len(chaos.cpus), memory_mib=chaos.memory_mib, crds=CRDS)
        plane.prepare()
        plane.configure(documents(chaos.policy))
        self.clock.step(FIRST_STEP_S)
        scene.start(SNAPSHOTS)
        for component in (plane.manager, plane.scheduler):
            component.start()
        self._ledger = ledger = Ledger(scene.api, random.Random(self.rng.random()))
        ledger.start()
        try:
            self._settle(Turn([], ["start"]))
            yield
        finally:
            self._thaw()
            ledger.end()
        until(lambda: not ledger.unbound(), "a node for every pod")
        self.written, self.unanswered = len(ledger.created) + len(ledger.deleted), ledger.unanswered
        self.wrong += [f"turn {at}: {what}" for at, turn in enumerate(self.turns, 1) for what in turn.wrong]
        self.wrong += [f"lost: {what}" for what in ledger.wrong()]
        status = scene.stop()
        left = differences(chaos.before, walk(chaos.fleet.tree))
        self.wrong += [f"stopped: {what}" for what in left] + (
            [f"exit status {status}: {scene.koordlet.log[-1000:]}"] if status else []
        )

    def turn(self, kills: Sequence[str], outages: Sequence[type[Outage]], *, change: bool) -> None:
        """The outages begin, the components are killed during churn, the outages end, the components start again.
        `change`: the policy changes then."""
        turn = Turn(list(kills), [outage.name for outage in outages])
        self._open = [self._outages[outage] for outage in outages]
        for outage in self._open:
            outage.begin()
        pending = list(kills)
        ends = time.monotonic() + self.rng.uniform(0.0, LONGEST_S)
        while time.monotonic() < ends or pending:
            self.chaos.churn()
            if pending and self.rng.random() < KILLED:
                self._kill(pending.pop(self.rng.randrange(len(pending))))
        if not kills and outages and all(outage.settled for outage in outages):
            self.chaos.scene.settle(ROUNDS)
            turn.wrong += [f"during {', '.join(turn.outages)}: {what}" for what in self.chaos.compare()]
        self._thaw()
        for name in self.rng.sample(list(kills), len(kills)):
            self._start(name)
        self._settle(turn, change=change)
        self.turns.append(turn)
        if self._ledger.error is not None:
            raise self._ledger.error
        for name, pid in self._pids().items():
            if name not in kills:
                self.memory[name].append(resident_mib(pid))
        self.say(f"turn {len(self.turns)}: {turn}")

    # --- parts

    def _random_turn(self) -> None:
        outages = [outage for outage in OUTAGES if self.rng.random() < OUT]
        kills = [name for name in COMPONENTS if self.rng.random() < KILLED]
        self.turn(kills, outages, change=self.rng.random() < NEW_POLICY)

    def _settle(self, turn: Turn, *, change: bool = False) -> None:
        """Until everything runs, and koordlet has finished its rounds with the NodeSLO of now."""
        scene, chaos = self.chaos.scene, self.chaos
        began = time.monotonic()
        until(scene.api.ready, "the API server")
        if change:
            chaos.policy = self.rng.choice(chaos.policies)
            self.plane.configure(documents(chaos.policy))
        policy = chaos.policy
        assert policy is not None
        until(lambda: self.plane.asks(documents(policy)), "the manager's NodeSLO")
        for _ in range(2):  # the first event may be of a list from before
            self._await_mark()
        scene.publish()
        scene.settle(ROUNDS)
        turn.wrong += chaos.compare()
        turn.wrong += self.runtime.wrong()
        turn.seconds = time.monotonic() - began

    def _await_mark(self) -> None:
        """Until koordlet has received a change of its NodeSLO that was made after this call."""
        scene = self.chaos.scene
        before = self._received()

        def received() -> bool:
            try:
                scene.api.patch(SLO, {"metadata": {"annotations": {MARK: str(time.monotonic_ns())}}})
            except UNREACHABLE:
                return False
            time.sleep(0.2)
            return self._received() != before

        until(received, "koordlet's watch of NodeSLO")

    def _received(self) -> tuple[str, ...]:
        """koordlet's counts of lists and events of its NodeSLO."""
        text = (self.chaos.scene.koordlet.answer("/internal-metrics") or b"").decode()
        counts = ("koord_informer_events_total", "koord_informer_relists_total")
        return tuple(line for line in text.splitlines() if line.startswith(counts) and "nodeslo" in line)

    def _thaw(self) -> None:
        for outage in self._open:
            outage.end()
        self._open = []

    def _kill(self, name: str) -> None:
        scene = self.chaos.scene
        {
            KOORDLET: lambda: scene.koordlet.kill(),
            API_SERVER: scene.api.kill,
            MANAGER: self.plane.manager.kill,
            SCHEDULER: self.plane.scheduler.kill,
            PROXY: self.runtime.proxy.kill,
        }[name]()

    def _start(self, name: str) -> None:
        scene = self.chaos.scene
        {
            KOORDLET: lambda: scene.start(SNAPSHOTS),
            API_SERVER: scene.api.start,
            MANAGER: self.plane.manager.start,
            SCHEDULER: self.plane.scheduler.start,
            PROXY: self.runtime.proxy.start,
        }[name]()

    def _pids(self) -> dict[str, int]:
        scene, plane = self.chaos.scene, self.plane
        processes: dict[str, Any] = {
            KOORDLET: scene.koordlet.process,
            API_SERVER: scene.api.process,
            MANAGER: plane.manager.process,
            SCHEDULER: plane.scheduler.process,
            PROXY: self.runtime.proxy.process,
        }
        return {name: process.pid for name, process in processes.items()}
