"""Whom the kernel kills first among a pod's containers, by annotation (spec 03 §4.14). Pure.

`koordinator.sh/oom-score-adj-spec` says it by container, `koordinator.sh/oom-score-adj` for all others. Init containers
are set too, sandboxes are not. A pod that asks for nothing keeps what the kubelet gave it.
"""

from __future__ import annotations

from koordlet.api.annotations.pod import OOMScores, oom_scores
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.oomscores import OOM_SCORE_ADJ
from koordlet.runtimehooks.stages import followed, running

log = get_logger(__name__)

REASON = "OOMScoreAdj"
FAMILY = "container_oom_score_adj"


class OOMScoreAdj(PerPodStrategy):
    """The strategy."""

    name = "oomscoreadj"
    gate = "OOMScoreAdj"

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        updates: list[DesiredSetting] = []
        figures: dict[tuple[str, ...], float] = {}
        for pod in followed(view):
            scores = _asked(pod)
            if scores is None:
                continue
            about = about_pod(pod.meta.namespace, pod.meta.name)
            for name, directory in running(pod):
                score = scores.of(name)
                if score is None:
                    continue
                setting = Setting(OOM_SCORE_ADJ, directory)
                updates.append(DesiredSetting(setting, score, REASON, about=about))
                if view.current(setting) == score:
                    figures[pod.meta.name, pod.meta.namespace, pod.meta.uid, name] = score
        return QoSDecision(tuple(updates), figures={FAMILY: figures})


def _asked(pod: PodView) -> OOMScores | None:
    """None for a pod that asks for nothing, or malformed."""
    if pod.meta.pod is None:
        return None
    who = f"{pod.meta.namespace}/{pod.meta.name}"
    try:
        found = oom_scores(pod.meta.pod.metadata.annotations)
    except WireError as error:
        log.once(f"{pod.meta.uid}:{error}", "annotation ignored", pod=who, error=str(error))
        return None
    if found is not None and found.refused:
        log.once(
            f"{pod.meta.uid}:{found.refused}", "OOM scores left out: not from -1000 to 1000",
            pod=who, of=",".join(found.refused),
        )  # fmt: skip
    return found
