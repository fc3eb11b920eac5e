"""Cost of a minute of predictions on a full node: training, forecast, a NodeMetric status, a checkpoint.

Run: `python tests/scale/bench_prediction.py [--pods 110] [--rounds 20]`. The metric cache holds one-second samples:
half an hour of the node and five minutes of every pod. Times are this process's CPU time, the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.api.core import Node, Pod
from koordlet.api.encoding.wire import Time, convert, encode
from koordlet.metriccache import Batch, MetricCache
from koordlet.prediction.checkpoints import CheckpointDirectory
from koordlet.prediction.models import PredictionModels
from koordlet.prediction.service import NodeObjects, PredictionService, PredictionSettings
from koordlet.prometheus import Registries
from koordlet.statesinformer.nodemetric.status import ReportPolicy, build_status
from koordlet.statesinformer.pods.model import PodMeta, Workloads
from tests.scale.figures import Figure, report

HISTORY = 1800
RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}}


def pod(number: int) -> PodMeta:
    uid = f"{number:08d}-0000-4000-8000-000000000000"
    body = {"metadata": {"name": uid, "uid": uid}, "spec": {"containers": [{"name": "main", "resources": RESOURCES}]}}
    priority = ("koord-prod", "koord-batch")[number % 2]
    return PodMeta(uid, uid, "bench", "LS", priority, "Burstable", f"kubepods/{uid}", (), convert(body, Pod))


def filled(pods: dict[str, PodMeta]) -> MetricCache:
    cache, random = MetricCache(), np.random.default_rng(1)
    keys = [(uid,) for uid in pods]
    for at in range(HISTORY):
        batch = Batch(float(at))
        for kind, size in (("cpu_usage", 4.0), ("memory_usage", 8e9)):
            for level in ("node", "sys"):
                batch.add(f"{level}_{kind}", float(random.gamma(4, size / 4)))
            batch.extend(f"pod_{kind}", keys, random.gamma(4, size / 400, len(keys)))
        cache.commit(batch)
    return cache


def median_ms(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    pods = {meta.uid: meta for meta in map(pod, range(options.pods))}
    cache, workloads = filled(pods), Workloads(1, MappingProxyType(pods))
    node: Node = convert({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "64", "memory": "256Gi"}}}, Node)
    now = float(HISTORY - 1)
    with tempfile.TemporaryDirectory() as folder:
        directory = CheckpointDirectory(Path(folder))
        service = PredictionService(
            cache, NodeObjects(lambda: workloads, lambda: node, lambda: ""), PredictionModels(), directory,
            PredictionSettings(), Registries(),
            clock=lambda: now, wall=lambda: 1.78e9 + now,
        )  # fmt: skip
        metas = list(pods.values())

        def status() -> bytes:
            built = build_status(
                cache, workloads, ReportPolicy(), now=now, update_time=Time.from_unix(0), forecast=service.forecast
            )
            return encode(built)

        figures = [
            Figure("prediction_training", median_ms(options.rounds, service.train), "ms", 20.0),
            Figure("prediction_forecast", median_ms(options.rounds, lambda: service.forecast(metas, None)), "ms", 20.0),
            Figure("nodemetric_status", median_ms(options.rounds, status), "ms", 50.0),
            Figure("nodemetric_status_size", len(status()) / 1024, "KiB"),
        ]
        key = metas[0].uid
        written = median_ms(options.rounds, lambda: directory.write(service.models, key, now))
        figures.append(Figure("prediction_checkpoint", written, "ms", 20.0))
    held = sum(h.weights.nbytes for h in (service.models.cpu, service.models.memory)) / 2**20
    figures.append(Figure("prediction_models_memory", held, "MiB", 2.0))
    return report("prediction", figures)


if __name__ == "__main__":
    sys.exit(main())
