"""What one pod with the most expensive annotations costs koordlet: per round while unchanged, and once per change.

Run: `python tests/scale/bench_hostile_pod.py [--rounds 200]`. A round is what koordlet does with the kubelet's answer:
decode it, derive the pods, accept CPUs, build the strategies' view and read each annotation. CPU time of the process;
the cost of the same round with a pod without annotations is subtracted. The budget is 1 ms per round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.api import names
from koordlet.api.annotations import device, pod, scheduling
from koordlet.api.annotations._base import PER_CONTAINER, SETTING
from koordlet.api.cpus import MAX_RANGES
from koordlet.api.encoding.wire import WireError
from koordlet.qosmanager.engine.view import PodView
from koordlet.statesinformer.pods.informer import PodsInformer
from koordlet.statesinformer.pods.kubelet import KubeletClient
from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.cpu.cpuset import CPUSet
from tests.scale.figures import Figure, report

BUDGET_MS = 1.0
READERS = (
    pod.CPU_BURST.get, pod.MEMORY_QOS.get, pod.BLKIO_QOS.get, pod.cpu_qos, pod.network_limits, pod.RESCTRL.get,
    pod.oom_scores, pod.EXTENDED_RESOURCE_SPEC.get, scheduling.RESOURCE_STATUS.get, device.ALLOCATED.get,
)  # fmt: skip


def annotations(number: int) -> dict[str, str]:
    """Texts at the limits of length and items; `number` makes them new."""
    amounts = {f"r{number}-{index}": f"{index}{number}m" for index in range(100)}
    long = f" {number} ".join(["x" * 100] * 400)
    texts = {
        names.ANNOTATION_RESOURCE_STATUS: json.dumps(
            {
                "cpuset": ",".join(str(2 * cpu) for cpu in range(MAX_RANGES)),
                "numaNodeResources": [{"node": n, "resources": amounts} for n in range(4)],
            }
        ),
        names.ANNOTATION_DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": n, "resources": amounts} for n in range(4)]}),
        names.ANNOTATION_EXTENDED_RESOURCE_SPEC: json.dumps({"containers": {"c": {"limits": amounts}}}),
        names.ANNOTATION_OOM_SCORE_ADJ_SPEC: json.dumps({f"c{number}-{index}": index for index in range(500)}),
        names.ANNOTATION_NETWORK_QOS: long[: SETTING.chars],
        names.ANNOTATION_CPU_QOS: long,
        names.ANNOTATION_BLKIO_QOS: json.dumps({"blocks": [{"name": str(n)} for n in range(40)]}),
    }
    assert all(len(texts[key]) <= PER_CONTAINER.chars for key in list(texts)[:4])
    return texts


def answer(texts: dict[str, str]) -> bytes:
    """The kubelet's answer with one pod."""
    metadata = {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "annotations": texts,
        "labels": {names.LABEL_QOS_CLASS: "LSR"},
    }
    item = {"metadata": metadata, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}}
    return json.dumps({"kind": "PodList", "items": [item]}).encode()


class Rounds(KubeletClient):
    """A kubelet whose answers are given."""

    def __init__(self) -> None:
        super().__init__(lambda: "", self._none)
        self.body = b""
        self.informer = PodsInformer(self, lambda: CgroupDriver.CGROUPFS, online_cpus=CPUSet(range(4096)))

    @staticmethod
    async def _none() -> dict[str, str]:
        return {}

    async def _get(self, path: str) -> bytes:
        return self.body

    async def round(self) -> None:
        """One answer, and one use of it by the strategies."""
        await self.informer.sync()
        for meta in self.informer.pods.values():
            PodView.of(meta, None, None)
            for read in READERS:
                try:
                    read(meta.pod.metadata.annotations if meta.pod else {})
                except WireError:
                    continue

    async def cost_ms(self, bodies: list[bytes]) -> float:
        """The lower quartile of CPU milliseconds per round."""
        costs = []
        for body in bodies:
            self.body = body
            begun = time.process_time()
            await self.round()
            costs.append(1000 * (time.process_time() - begun))
        return sorted(costs)[len(costs) // 4]


async def measure(rounds: int) -> list[Figure]:
    plain = await Rounds().cost_ms([answer({})] * rounds)
    unchanged = await Rounds().cost_ms([answer(annotations(0))] * rounds)
    changed = await Rounds().cost_ms([answer(annotations(number)) for number in range(rounds)])
    return [
        Figure("hostile_pod_plain_round", plain, "ms"),
        Figure("hostile_pod_unchanged_round", unchanged - plain, "ms", BUDGET_MS),
        Figure("hostile_pod_changed_round", changed - plain, "ms"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    return report("hostile-pod", asyncio.run(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    sys.exit(main())
