"""Suites for any cluster pass on a real Kubernetes: what users do with kubectl, and the client's contract."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.kubernetes.components import Kubernetes
from tests.kubernetes.node import ROOT

pytestmark = pytest.mark.kubernetes
SUITES = {
    "end to end": ["tests/e2e/test_e2e_cluster.py", "-k", "not object_of_the_documentation"],
    "client conformance": ["tests/koordlet/kube/test_kube_conformance.py", "-k", "cluster"],
}


@pytest.mark.parametrize("arguments", SUITES.values(), ids=SUITES)
def test_the_suite_passes(installed: Kubernetes, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "KUBECONFIG": str(installed.kubeconfig)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
