"""What one pod with the most expensive annotations costs koordlet: per round while unchanged, and once per change; and
what one with the most containers costs while unchanged.

Run: `python tests/scale/bench_hostile_pod.py [--rounds 200]`. A round is what koordlet does with the kubelet's answer:
decode it, derive the pods, accept CPUs, build the strategies' view and read each annotation. CPU time of the process,
mean of the rounds; the cost of the same round with a pod without annotations is subtracted. The budget of
annotations is 1 ms per round, also if they change with every answer: they then have the API server's maximal size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.api import names
from koordlet.api.annotations import device, pod, scheduling
from koordlet.api.annotations._base import PER_CONTAINER, SETTING
from koordlet.api.cpus import MAX_RANGES
from koordlet.api.encoding.wire import WireError
from koordlet.app.heap import bound_heap
from koordlet.qosmanager.engine.view import PodView
from koordlet.statesinformer.pods.informer import PodsInformer
from koordlet.statesinformer.pods.kubelet import KubeletClient
from koordlet.statesinformer.pods.kubelettls import KubeletVerification
from koordlet.statesinformer.pods.listbatches import Batch, ListBatches
from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.cpu.cpuset import CPUSet
from tests.scale.figures import Figure, report

BUDGET_MS = 1.0
BATCH = 50
"""Rounds in which the most expensive ones, which are rare, occur several times."""
PART_BYTES = 64 << 10
"""Of an answer, as it arrives."""
MAX_CONTAINERS = 24_000
"""With shortest names and images, at the API server."""
MAX_ANNOTATION_BYTES = 256 << 10
"""Of all annotations of an object, at the API server."""
READERS = (
    pod.CPU_BURST.get, pod.MEMORY_QOS.get, pod.BLKIO_QOS.get, pod.cpu_qos, pod.network_limits, pod.RESCTRL.get,
    pod.oom_scores, pod.EXTENDED_RESOURCE_SPEC.get, scheduling.RESOURCE_STATUS.get, device.ALLOCATED.get,
)  # fmt: skip


def hostile_annotations(number: int) -> dict[str, str]:
    """Texts at the limits of length and items, with amounts that are slow to parse; `number` makes them new. Short
    annotations that koordlet does not read fill the API server's limit."""

    def amounts(annotation: int, group: int) -> dict[str, str]:
        return {f"r{index}": f"{annotation}{group}{index}.5{number}e-9" for index in range(100)}

    long = f" {number} ".join(["x" * 100] * 400)
    texts = {
        names.ANNOTATION_RESOURCE_STATUS: json.dumps(
            {
                "cpuset": ",".join(f"{3 * cpu}-{3 * cpu + 1}" for cpu in range(MAX_RANGES)),
                "numaNodeResources": [{"node": n, "resources": amounts(1, n)} for n in range(2)],
            }
        ),
        names.ANNOTATION_DEVICE_ALLOCATED: json.dumps(
            {"gpu": [{"minor": n, "resources": amounts(2, n)} for n in range(4)]}
        ),
        names.ANNOTATION_EXTENDED_RESOURCE_SPEC: json.dumps(
            {"containers": {f"c{n}": {"limits": amounts(3, n)} for n in range(4)}}
        ),
        names.ANNOTATION_OOM_SCORE_ADJ_SPEC: json.dumps({f"c{number}-{index}": index for index in range(500)}),
        names.ANNOTATION_NETWORK_QOS: long[: SETTING.chars],
        names.ANNOTATION_CPU_QOS: long,
        names.ANNOTATION_BLKIO_QOS: json.dumps({"blocks": [{"name": str(n)} for n in range(40)]}),
    }
    assert all(len(texts[key]) <= PER_CONTAINER.chars for key in list(texts)[:4])
    size = sum(len(key) + len(text) for key, text in texts.items())
    for index in range(MAX_ANNOTATION_BYTES):
        key = f"{index}.{number}"
        size += len(key)
        if size > MAX_ANNOTATION_BYTES:
            break
        texts[key] = ""
    return texts


def answer(texts: dict[str, str], containers: int = 1) -> bytes:
    """The kubelet's answer with one pod, whose containers wait if there are many."""
    metadata = {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "annotations": texts,
        "labels": {names.LABEL_QOS_CLASS: "LSR"},
    }
    spec: dict[str, object] = {"containers": [{"name": "c"}]}
    status: dict[str, object] = {"phase": "Running"}
    if containers > 1:
        defaults = {
            "image": "a",
            "resources": {},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "Always",
        }
        waiting = {
            "state": {"waiting": {"reason": "ContainerCreating"}},
            "lastState": {},
            "ready": False,
            "restartCount": 0,
            "image": "a",
            "imageID": "",
            "started": False,
        }
        each = [f"c{number}" for number in range(containers)]
        spec["containers"] = [{"name": name, **defaults} for name in each]
        status = {"phase": "Pending", "containerStatuses": [{"name": name, **waiting} for name in each]}
    item = {"metadata": metadata, "spec": spec, "status": status}
    return json.dumps({"kind": "PodList", "items": [item]}, separators=(",", ":")).encode()  # like Go


class Rounds(KubeletClient):
    """A kubelet whose answers are given."""

    def __init__(self) -> None:
        super().__init__(lambda: "", self._none, tls=KubeletVerification("", Path("/nonexistent")))
        self._parts: list[bytes] = []
        self.informer = PodsInformer(self, lambda: CgroupDriver.CGROUPFS, online_cpus=CPUSet(range(4096)))

    @staticmethod
    async def _none() -> dict[str, str]:
        return {}

    async def _get(self, path: str, lists: ListBatches) -> AsyncGenerator[Batch, None]:
        for part in self._parts:
            batch = lists.add(part)
            if batch is not None:
                yield batch
        yield lists.rest()

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

    async def cost_ms(self, answers: Iterable[bytes]) -> float:
        """The mean CPU milliseconds per round, of the BATCH rounds that the machine disturbed least."""
        costs = []
        for body in answers:
            self._parts = [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]
            begun = time.process_time()
            await self.round()
            costs.append(1000 * (time.process_time() - begun))
        batches = [costs[first : first + BATCH] for first in range(0, len(costs), BATCH)]
        return min(statistics.fmean(batch) for batch in batches[1:] or batches)


async def measure(rounds: int) -> list[Figure]:
    bound_heap()
    plain = await Rounds().cost_ms([answer({})] * rounds)
    unchanged = await Rounds().cost_ms([answer(hostile_annotations(0))] * rounds)
    kubelet = Rounds()
    changed = await kubelet.cost_ms(answer(hostile_annotations(number)) for number in range(rounds))
    containers = await Rounds().cost_ms([answer({}, MAX_CONTAINERS)] * rounds)
    return [
        Figure("hostile_pod_plain_round", plain, "ms"),
        Figure("hostile_pod_unchanged_round", unchanged - plain, "ms", BUDGET_MS),
        Figure("hostile_pod_changed_round", changed - plain, "ms", BUDGET_MS),
        Figure("hostile_pod_postponed_changes", 100 * kubelet.postponed / rounds, "%"),
        Figure("hostile_pod_containers_unchanged_round", containers - plain, "ms"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    return report("hostile-pod", asyncio.run(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    sys.exit(main())
