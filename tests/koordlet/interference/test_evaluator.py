"""Results of the evaluation: history, alarms, the strategy in force, pages and short forms."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from koordlet.api.pages.interference import EXTENSION_KEY
from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.interference.alarms import DETECTED, ENDED, EVENT_SECONDS, OWN, AlarmPublisher
from koordlet.interference.detector import Detector
from koordlet.interference.evaluator import InterferenceEvaluator
from koordlet.interference.history import History
from koordlet.interference.model import CAUSES, RESOURCES
from koordlet.interference.strategy import StrategySource
from koordlet.interference.views import InterferenceViews
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta, Workloads
from tests.present import present


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []
        self.full = False
        """Whether a limit of Events is reached."""

    def event(self, about: Any, type: str, reason: str, message: str) -> bool:
        if not self.full:
            self.events.append((f"{about.namespace}/{about.name}", type, reason, message))
        return not self.full

    @property
    def reasons(self) -> list[str]:
        return [reason for _, _, reason, _ in self.events]


class Auditor:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def enabled(self, level: int) -> bool:
        return True

    def record(self, level: int, about: Any, reason: str, message: str = "", *, details: Any = None) -> None:
        self.reasons.append(reason)


class World:
    """A node whose evidence the test sets, second by second."""

    def __init__(self, make: Any) -> None:
        self.make, self.now = make, 0.0
        self.web = make.container("web")
        self.batch, self.other = make.container("batch", qos="BE"), make.container("other", qos="BE")
        self.node = make.node(self.web, self.batch, self.other)
        self.extensions: Any = None
        self.recorder, self.auditor = Recorder(), Auditor()
        publisher = AlarmPublisher(self.auditor, self.recorder, clock=lambda: self.now)
        strategies = StrategySource(lambda: self.extensions)
        self.evaluator = InterferenceEvaluator(self, Detector(), strategies, [publisher], clock=lambda: self.now)
        meta = PodMeta(
            "uid-web", "web", "default", "LS", "", "Burstable", "kubepods/web",
            (ContainerMeta(self.web.key, "web", "kubepods/web", True),),
        )  # fmt: skip
        self.registries = Registries()
        self.registries.node = "n1"
        self.views = InterferenceViews(
            self.evaluator,
            self.registries,
            lambda: Workloads(1, MappingProxyType({"uid-web": meta}), self.node.subjects),
            clock=lambda: self.now,
            wall=lambda: self.now + 1e6,
        )
        self.loss, self.own, self.culprit = 0.0, 0.0, self.batch

    def collect(self, now: float, strategy: Any) -> Any:
        blames = {0: [self.make.because_of(self.culprit, 1.0)]} if self.loss else {}
        return self.node.evidence(
            [self.loss, 0.0, 0.0], [self.own, 0.0, 0.0], blames=blames, parts={"quota": [self.own, 0.0, 0.0]}
        )

    def run(self, seconds: int, loss: float | None = None, own: float | None = None) -> None:
        self.loss = self.loss if loss is None else loss
        self.own = self.own if own is None else own
        for _ in range(seconds):
            self.evaluator.step()
            self.now += 1.0


@pytest.fixture
def world(make: Any) -> Iterator[World]:
    return World(make)  # type: ignore[return-value]


def test_an_alarm_sends_one_event_when_it_begins_and_one_when_it_ends(world: World) -> None:
    world.run(60, loss=0.5)
    assert world.recorder.reasons == [DETECTED]
    pod, type, _, message = world.recorder.events[0]
    assert (pod, type) == ("default/web", "Warning")
    assert "lost 50 % of its time waiting for a CPU: default/batch/batch 100 %" in message
    world.run(20, loss=0.0)
    assert world.recorder.reasons == [DETECTED, ENDED]
    assert world.auditor.reasons == [DETECTED, ENDED]
    assert world.evaluator.detections["cpu", "neighbour"] == 1
    assert 55 <= world.evaluator.alarm_seconds["cpu", "neighbour"] <= 62


def test_the_end_of_an_alarm_without_a_begin_sends_no_event(world: World) -> None:
    world.recorder.full = True
    world.run(20, loss=0.5)
    world.recorder.full = False
    world.run(20, loss=0.0)
    assert world.auditor.reasons == [DETECTED, ENDED]
    assert world.recorder.reasons == []


def test_a_new_worst_culprit_is_published_after_the_minimum_duration(world: World) -> None:
    world.run(20, loss=0.5)
    world.culprit = world.other
    world.run(2)
    assert world.recorder.reasons == [DETECTED]
    world.run(10)
    assert world.recorder.reasons == [DETECTED, DETECTED]
    assert "default/other/other" in world.recorder.events[-1][3]


def test_a_self_inflicted_delay_sends_a_normal_event(world: World) -> None:
    world.run(20, own=0.6)
    assert [(type, reason) for _, type, reason, _ in world.recorder.events] == [("Normal", OWN)]
    assert "its CPU quota ran out" in world.recorder.events[0][3]


def test_events_of_a_flapping_alarm_are_rate_limited(world: World) -> None:
    for _ in range(6):
        world.run(8, loss=0.5)
        world.run(8, loss=0.0)
    assert world.evaluator.detections["cpu", "neighbour"] == 6
    assert world.recorder.reasons.count(DETECTED) <= 1 + 96 / EVENT_SECONDS
    assert world.auditor.reasons.count(DETECTED) == 6


def test_events_and_node_metric_can_be_switched_off(world: World) -> None:
    world.extensions = {"interferenceStrategy": {"event": False, "nodeMetric": False}}
    world.run(20, loss=0.5)
    assert not world.recorder.events
    assert world.views.pod_extension("uid-web") is None
    assert world.views.node_extension() == {EXTENSION_KEY: None}


def test_switching_detection_off_ends_alarms(world: World) -> None:
    world.run(20, loss=0.5)
    world.extensions = {"interferenceStrategy": {"enable": False}}
    world.run(2)
    assert world.recorder.reasons == [DETECTED, ENDED]
    assert not world.evaluator.active
    assert not world.views.node_explained().enabled


def test_a_malformed_strategy_keeps_the_last_valid_one_in_force(world: World) -> None:
    world.extensions = {"Object": {"interferenceStrategy": {"minDurationSeconds": 9}}}
    assert world.evaluator.strategies.current().min_duration_seconds == 9
    world.extensions = {"Object": {"interferenceStrategy": {"minDurationSeconds": "long"}}}
    assert world.evaluator.strategies.current().min_duration_seconds == 9
    assert "minDurationSeconds" in world.evaluator.strategies.error
    world.extensions = None
    assert world.evaluator.strategies.current() is DEFAULT
    assert not world.evaluator.strategies.error


def test_the_alarm_of_a_removed_container_ends(world: World) -> None:
    world.run(20, loss=0.5)
    world.node = world.make.node(world.batch)
    world.collect = lambda now, window: world.node.evidence([0.0])  # type: ignore[assignment, method-assign]
    world.evaluator.step()
    assert world.recorder.reasons == [DETECTED, ENDED]
    assert not world.evaluator.active


def test_the_short_forms_name_the_worst_culprit(world: World) -> None:
    world.run(20, loss=0.5, own=0.3)
    (first, second) = present(world.views.pod_extension("uid-web"))[EXTENSION_KEY]
    assert (first["cause"], first["culprit"], first["share"]) == ("neighbour", "default/batch/batch", 1.0)
    assert second["cause"] == "self"
    summary = world.views.node_extension()[EXTENSION_KEY]
    assert (summary["interfered"]["cpu"], summary["interfered"]["io"], summary["selfInflicted"]["cpu"]) == (1, 0, 1)
    assert summary["hurtPods"] == 1
    assert summary["worstCulprits"][0]["pod"] == "batch"
    assert world.views.pod_extension("unknown") is None


def test_the_page_has_series_verdicts_and_changes(world: World) -> None:
    world.run(10, loss=0.0)
    world.run(30, loss=0.5)
    page = world.views.pod_explained("default", "web")
    assert page is not None
    (container,) = page.containers
    series = next(page_series for page_series in container.series if page_series.cause == "neighbour")
    assert series.values[0] == 0.0
    assert series.values[-1] == 0.5
    assert page.sources == {"cpu": "bpf"}
    assert set(page.missing) == {"memory", "io", "network", "cache"}
    assert container.verdicts[0].culprits[0].pod == "batch"
    assert container.verdicts[0].began == pytest.approx(1e6 + 10)
    assert [change.verdict.state for change in container.changes] == ["interfered"]
    assert world.views.pod_explained("default", "gone") is None


def shape(value: float) -> np.ndarray:
    return np.full((1, len(RESOURCES), len(CAUSES)), value)


def test_history_keeps_peaks_for_its_length_only(make: Any) -> None:
    history, container = History(step=5.0, points=4), (make.container("web"),)
    for second in range(100):
        history.record(container, shape(0.9 if second == 72 else 0.1), (), float(second))
    peaks = history.series(container[0].key)[:, 0, 0]
    assert peaks.tolist() == pytest.approx([0.1] * 4)
    history.record(container, shape(0.7), (), 101.0)
    history.record(container, shape(0.2), (), 102.0)
    assert history.series(container[0].key)[-1, 0, 0] == pytest.approx(0.7)
    history.record(container, shape(0.3), (), 1000.0)  # after a long gap nothing old remains
    assert np.isnan(history.series(container[0].key)[:-1]).all()
    assert history.series("unknown").shape[0] == 0


def test_history_reuses_the_row_of_a_removed_container(make: Any) -> None:
    history = History(step=1.0, points=4)
    for second in range(200):
        subjects = (make.container(f"c{second}"),)
        history.record(subjects, shape(0.5), (), float(second))
    assert history._ring.nbytes <= 33 * 4 * len(RESOURCES) * len(CAUSES) * 4
    assert np.isnan(history.series("containerd://c199")[:-1]).all()
