"""OOM scores: which of a pod's containers the kernel kills first, by annotation (spec 03 §4.14). Pure.

`koordinator.sh/oom-score-adj-spec` sets the score per container, `koordinator.sh/oom-score-adj` that of all others.
Init containers are set too, sandboxes are not. A pod without annotations keeps the kubelet's scores. A negative score
protects a container from the OOM killer at the cost of all others on the node, so only pods of a system priority class
may have one, as in Kubernetes.
"""

from __future__ import annotations

from koordlet.api.annotations.pod import MAX_OOM_SCORE, MIN_OOM_SCORE, PodOOMScores, oom_scores
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.oomscores import OOM_SCORE_ADJ
from koordlet.runtimehooks.stages import followed_pods, running_containers

log = get_logger(__name__)

REASON = "OOMScoreAdj"
FAMILY = "container_oom_score_adj"
SYSTEM_PRIORITY = 2_000_000_000
"""Priority of system-cluster-critical; system-node-critical is above."""


class OOMScoreAdj(PerPodStrategy):
    """The strategy."""

    name = "oomscoreadj"

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        settings: list[DesiredSetting] = []
        figures: dict[tuple[str, ...], float] = {}
        for pod in followed_pods(view):
            scores = _scores(pod)
            if scores is None:
                continue
            about = about_pod(pod.meta.namespace, pod.meta.name)
            for name, directory in running_containers(pod):
                score = scores.of(name)
                if score is None:
                    continue
                setting = Setting(OOM_SCORE_ADJ, directory)
                settings.append(DesiredSetting(setting, score, REASON, about=about))
                if view.current(setting) == score:
                    figures[pod.meta.name, pod.meta.namespace, pod.meta.uid, name] = score
        return QoSDecision(tuple(settings), figures={FAMILY: figures})


def _scores(pod: PodView) -> PodOOMScores | None:
    """None without annotations, or with a malformed one."""
    if pod.meta.pod is None:
        return None
    name = f"{pod.meta.namespace}/{pod.meta.name}"
    try:
        lowest = MIN_OOM_SCORE if (pod.meta.pod.spec.priority or 0) >= SYSTEM_PRIORITY else 0
        scores = oom_scores(pod.meta.pod.metadata.annotations, lowest=lowest)
    except WireError as error:
        log.once(f"{pod.meta.uid}:{error}", "Annotation ignored", pod=name, error=str(error))
        return None
    if scores is not None and scores.refused:
        message = "OOM scores left out: out of the range for this pod"
        of = ",".join(scores.refused)
        log.once(f"{pod.meta.uid}:{scores.refused}", message, pod=name, of=of, lowest=lowest, highest=MAX_OOM_SCORE)
    return scores
