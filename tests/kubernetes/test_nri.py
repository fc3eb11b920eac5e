"""Hooks through NRI: a containerd with NRI, no runtime proxy, and the same values before the first instruction."""

from __future__ import annotations

import pytest

from tests.kubernetes.components import Kubernetes
from tests.kubernetes.installation import get, koordlet_log
from tests.kubernetes.processes import wait_for
from tests.kubernetes.test_main_job import (
    BATCH_WEIGHTS,
    JOB,
    PROFILE,
    apply,
    offers,
    weight_at_the_first_instruction,
)

pytestmark = pytest.mark.kubernetes
LIMIT_S = 240.0


def test_the_first_instruction_has_the_batch_weight(installed: Kubernetes) -> None:
    installed.use_nri()
    installed.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=240s")
    wait_for(lambda: "NRI plugin configured" in koordlet_log(), "koordlet is a plugin of the runtime", LIMIT_S)
    apply(installed, PROFILE)
    wait_for(lambda: offers(installed), "the node offers batch resources", LIMIT_S)
    apply(installed, JOB)
    wait_for(lambda: bool(get(installed, "pods", "-l", "app=report")["items"]), "the Job has a pod", LIMIT_S)
    installed.kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=report", f"--timeout={LIMIT_S:.0f}s")
    assert weight_at_the_first_instruction(installed) in BATCH_WEIGHTS
    installed.kubectl("delete", "job", "report", "--wait=false")
