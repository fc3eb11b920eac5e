"""kill -9 at random moments while pods come and go: after each restart the tree must hold what the table says after two
rounds of koordlet in which it had all that it needs, and after an orderly stop what the kubelet set.

Everything random comes from one seed. While koordlet is dead pods go on coming and going and NodeSLO may change, so
that it leaves settings that the next one has to restore.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from koordlet.system.cgroup.naming import KubeQOS, qos_dir
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.process.classes import OWN, every_class
from tests.koordlet.process.expected import Memory, Policy, documents, expected, unseen
from tests.koordlet.process.fleet import Fleet, State, differences, walk
from tests.koordlet.process.scene import Scene

LONGEST = 3.0
"""Seconds from a check, or from the start, to the kill at most."""
EARLY = 0.3
"""Share of restarts that are killed within LONGEST of their start, before anything is checked."""
STOPPING = 0.2
"""Share of kills that come within HURRY seconds of an orderly stop: half of the settings may be restored by then."""
HURRY = 0.4
ROUNDS = 2
PINNED = 0.5
"""Share of new Guaranteed LSR pods that get a CPU of their own."""


@dataclass
class Chaos:
    """`scene` has an empty fleet and is not open yet."""

    scene: Scene
    rng: random.Random
    cpus: CPUSet
    memory_mib: int
    say: Callable[[str], None]
    policies: tuple[Policy, ...] = ()
    policy: Policy | None = None
    converged: list[float] = field(default_factory=list)
    """Seconds from each checked restart to its check."""
    wrong: list[str] = field(default_factory=list)
    before: State = field(default_factory=dict)
    """What the kubelet set."""
    _named: int = 0

    def __post_init__(self) -> None:
        memory = {"lsr": Memory(minimum=50, low=80), "ls": Memory(low=30, throttling=80), "be": Memory(throttling=60)}
        full = Policy(
            len(self.cpus), self.memory_mib, quota_percent=65, idle=True, burst=True,
            memory=memory, pools=str(self.cpus),
        )  # fmt: skip
        self.policies = (
            full,
            replace(full, memory={}),
            replace(full, burst=False, idle=False),
            replace(full, quota_percent=None),
        )

    @property
    def fleet(self) -> Fleet:
        return self.scene.fleet

    def populate(self, pods: int) -> Policy:
        """Make the pods; the first policy."""
        self.before = walk(self.fleet.tree)
        for _ in range(pods):
            self._add()
        self.policy = self.policies[0]
        return self.policy

    def open(self, pods: int) -> None:
        self.policy = self.populate(pods)
        self.scene.open(documents(self.policy), cpus=len(self.cpus), memory_mib=self.memory_mib)

    def run(self, kills: int) -> list[str]:
        """What was wrong, in words."""
        self.scene.start()
        for turn in range(1, kills + 1):
            lived, rounds = self._kill()
            self._change()
            began = time.monotonic()
            self.scene.start()
            step = f"kill {turn}/{kills}: {lived:.2f} s after a check or a start, round {rounds}"
            if turn < kills and self.rng.random() < EARLY:
                self.say(f"{step}; the next one comes early")
                continue
            self.scene.settle(ROUNDS)
            self.converged.append(time.monotonic() - began)
            left = self.compare()
            self.wrong += [f"kill {turn}: {what}" for what in left]
            state = "all is as specified" if not left else f"{len(left)} settings are wrong: {left[0]}"
            self.say(f"{step}; {ROUNDS} rounds later ({self.converged[-1]:.1f} s with the start) {state}")
        status = self.scene.stop()
        left = differences(self.before, walk(self.fleet.tree))
        self.wrong += [f"stopped: {what}" for what in left] + ([f"exit status {status}"] if status else [])
        self.say(f"stopped with status {status}; {len(left)} settings not restored")
        return self.wrong

    # --- parts

    def _kill(self) -> tuple[float, int]:
        """(seconds until it, rounds that the koordlet had begun)."""
        began, lives = time.monotonic(), self.rng.uniform(0.0, LONGEST)
        while time.monotonic() < began + lives:
            self.churn()
        rounds = self.scene.runs("qos")
        if self.rng.random() < STOPPING:
            self.scene.koordlet.process.terminate()
            time.sleep(self.rng.uniform(0.0, HURRY))
        self.scene.koordlet.kill()
        return time.monotonic() - began, rounds

    def _change(self) -> None:
        """What happens while no koordlet enforces."""
        for _ in range(self.rng.randrange(4)):
            self.churn()
        self.policy = self.rng.choice(self.policies)
        self.scene.ask(documents(self.policy))

    def compare(self) -> list[str]:
        """Settings that differ from what the policy asks for, in words."""
        assert self.policy is not None
        pinned = any(pod.spec.annotations == OWN for pod in self.fleet.pods.values())
        policy = replace(self.policy, pools=str(self.cpus - {max(self.cpus)})) if pinned else self.policy
        expected_settings = expected(self.before, self.fleet, policy)
        return differences(expected_settings, walk(self.fleet.tree), unseen(self.fleet, policy))

    def churn(self) -> None:
        """A pod goes and another comes; the kubelet tells of it a moment later."""
        uid = self.rng.choice(list(self.fleet.pods))
        gone = self.fleet.pods[uid].dir
        self.fleet.remove(uid)
        self.before = {place: text for place, text in self.before.items() if not f"{place[0]}/".startswith(f"{gone}/")}
        self._add()
        time.sleep(self.rng.uniform(0.0, 0.2))
        self.scene.publish()

    def _add(self) -> None:
        spec = self.rng.choice(list(every_class()))
        self._named += 1
        is_free = not any(pod.spec.annotations == OWN for pod in self.fleet.pods.values())
        if is_free and spec.qos == "LSR" and spec.kube is KubeQOS.GUARANTEED and self.rng.random() < PINNED:
            spec = replace(spec, annotations=OWN)
        (pod,) = self.fleet.add(replace(spec, name=f"{spec.name}-{self._named}"))
        self.before |= walk(self.fleet.tree, pod.dir)
        self._reweigh()

    def _reweigh(self) -> None:
        """The kubelet has changed the weight of its Burstable directory."""
        directory = qos_dir(self.fleet.driver, KubeQOS.BURSTABLE)
        file = "cpu.weight" if self.fleet.tree.v2 else "cpu.shares"
        self.before[directory, file] = (self.fleet.tree.path("cpu", directory) / file).read_text().strip()
