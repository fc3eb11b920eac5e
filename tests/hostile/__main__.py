"""Every attacker of the threat model at the same time against a whole node, while a service runs (docs/security.md).

Run: `make test-hostile` or `python -m tests.hostile [--seconds 60]` as root. It prints a table: the service's latencies
alone and under attack, koordlet's response time and memory, and what each attacker tried; status 1 if one gained
anything. The node is `koordctl up` with the shipped roles, and everything is removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.app.tasks import end_tasks
from tests.hostile import evidence, victim
from tests.hostile.attacks import ATTACKS, AttackTally
from tests.hostile.node import AttackedNode
from tests.hostile.view import run_in_own_cgroups
from tests.processmemory import resident_mib

PERIOD_S = 0.5
HEAD_START_S = 2.0
"""Before the measurement, so that all attackers are at work."""


PROBE = """
import sys, time, urllib.request
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    began = time.monotonic()
    try:
        good = urllib.request.urlopen(sys.argv[1], timeout=30).status == 200
    except OSError:
        good = False
    print(1000 * (time.monotonic() - began), int(good), flush=True)
    time.sleep(0.25)
"""
"""A process of its own: the attackers' event loop is busy."""


@dataclass
class PartWatch:
    """What koordlet and the other parts needed meanwhile."""

    health_ms: list[float] = field(default_factory=list)
    """Response times of koordlet's /healthz: how long its event loop was busy."""
    failures: int = 0
    """Requests without an answer within 30 s, or refused because of the limit on connections."""
    resident_mib: dict[str, float] = field(default_factory=dict)
    """The most of each part."""

    async def run(self, node: AttackedNode, seconds: float) -> None:
        url = f"{node.url(node.settings.koordlet_port)}/healthz"
        probe = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", PROBE, url, str(seconds), stdout=asyncio.subprocess.PIPE
        )
        memory = asyncio.create_task(self._memory(node))
        try:
            out, _ = await probe.communicate()
        finally:
            await end_tasks(memory)
        rows = [line.split() for line in out.decode().splitlines()]
        self.health_ms = [float(took) for took, good in rows if good == "1"]
        self.failures = sum(good == "0" for _, good in rows)

    async def _memory(self, node: AttackedNode) -> None:
        pids = node.pids()
        while True:
            for name, pid in pids.items():
                self.resident_mib[name] = max(self.resident_mib.get(name, 0.0), resident_mib(pid))
            await asyncio.sleep(PERIOD_S)

    def percentile(self, percent: int) -> float:
        ordered = sorted(self.health_ms) or [0.0]
        return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


@dataclass
class HostileReport:
    """The result. `gained`: what attackers got; empty if all is well."""

    alone: victim.Latencies
    attacked: victim.Latencies
    watch_alone: PartWatch
    watch: PartWatch
    tallies: dict[str, AttackTally]
    changed: list[str]
    log_mib: float

    @property
    def idle(self) -> list[str]:
        """Attackers that did nothing: the result says nothing about them."""
        return [name for name, tally in self.tallies.items() if not tally.succeeded and not tally.refused]

    @property
    def gained(self) -> list[str]:
        return [
            f"{name}: {what}" for name, tally in self.tallies.items() for what in sorted(set(tally.gained))
        ] + self.changed

    def table(self) -> str:
        """Two tables in Markdown."""
        quiet, loud = self.watch_alone, self.watch
        rows = [
            ("service, p50", f"{self.alone.median:.1f} ms", f"{self.attacked.median:.1f} ms"),
            ("service, p99", f"{self.alone.p99:.1f} ms", f"{self.attacked.p99:.1f} ms"),
            ("koordlet /healthz, p50", f"{quiet.percentile(50):.0f} ms", f"{loud.percentile(50):.0f} ms"),
            ("koordlet /healthz, p99", f"{quiet.percentile(99):.0f} ms", f"{loud.percentile(99):.0f} ms"),
            ("koordlet /healthz without answer", str(quiet.failures), str(loud.failures)),
            *(
                (f"memory, {name}", f"{quiet.resident_mib.get(name, 0):.0f} MiB", f"{most:.0f} MiB")
                for name, most in sorted(loud.resident_mib.items())
            ),
            ("koordlet's log", "", f"{self.log_mib:.1f} MiB"),
        ]
        lines = ["| | alone | under attack |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows), ""]
        lines += ["| attacker | accepted | refused | gained |", "| --- | --- | --- | --- |"]
        for name, tally in self.tallies.items():
            lines.append(f"| {name} | {tally.succeeded} | {tally.refused} | {len(set(tally.gained)) or 'nothing'} |")
        lines += ["", f"Cgroup values, objects of others, processes: {'; '.join(self.changed) or 'unchanged'}"]
        return "\n".join(lines)


async def play(folder: Path, seconds: float) -> HostileReport:
    """Bring up the node, measure alone and under attack, and remove everything."""
    node = AttackedNode(folder)
    try:
        await node.start(victim.service_code(node.socket))
        alone, watch_alone = await _measured(node, seconds)
        before = await evidence.read(node)
        tallies = {name: AttackTally() for name in ATTACKS}
        attackers = [asyncio.create_task(attack(node, tallies[name]), name=name) for name, attack in ATTACKS.items()]
        try:
            await asyncio.sleep(HEAD_START_S)
            attacked, watch = await _measured(node, seconds)
            ended = [task for task in attackers if task.done()]
            if ended:
                raise RuntimeError(f"an attacker ended early: {ended[0].get_name()}: {ended[0].exception()!r}")
            after = await evidence.read(node)
        finally:
            await end_tasks(*attackers)
        log = sum(path.stat().st_size for path in node.state_dir.rglob("koordlet*.log*")) / (1 << 20)
        changed = evidence.differences(before, after)
        return HostileReport(alone, attacked, watch_alone, watch, tallies, changed, log)
    finally:
        await node.stop()


async def _measured(node: AttackedNode, seconds: float) -> tuple[victim.Latencies, PartWatch]:
    watch = PartWatch()
    latencies, _ = await asyncio.gather(victim.measure(node.socket, seconds), watch.run(node, seconds))
    return latencies, watch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each of the two measurements")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.here:  # again, with cgroup trees of its own
        return run_in_own_cgroups([sys.executable, "-m", "tests.hostile", "--here", *sys.argv[1:]], dict(os.environ))
    with tempfile.TemporaryDirectory(prefix="koordhostile-") as folder:
        report = asyncio.run(play(Path(folder), options.seconds))
    print(report.table())
    for line in report.gained:
        print(f"gained: {line}")
    for name in report.idle:
        print(f"no attempt: {name}")
    return 1 if report.gained or report.idle else 0


if __name__ == "__main__":
    sys.exit(main())
