"""What a real API server does to long-lived clients: compacted history, and tokens that are not valid any more."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

import pytest

from koordlet.api.core import ConfigMap
from koordlet.kube import Client, ClientConfig
from koordlet.kube.decode import resource_of
from tests.kubernetes.components import ETCD, NODE, Kubernetes
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get, koordlet_log
from tests.kubernetes.processes import wait_for
from tests.kubernetes.test_faults import RECOVERY_S, create_and_place, report_time
from tests.kubernetes.test_faults import no_pods_left as no_pods_left

pytestmark = pytest.mark.kubernetes
CONFIG = "slo-controller-config"


def etcd(method: str, body: dict[str, Any]) -> dict[str, Any]:
    """A call of etcd's JSON gateway."""
    request = Request(f"{ETCD}/v3/kv/{method}", json.dumps(body).encode())
    with urlopen(request, timeout=60) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


def compact() -> None:
    """Drop etcd's whole history."""
    revision = etcd("range", {"key": "AA==", "limit": 1})["header"]["revision"]
    etcd("compaction", {"revision": revision, "physical": True})


def threshold(cluster: Kubernetes) -> Any:
    slo = get(cluster, "nodeslo", NODE)["spec"].get("resourceUsedThresholdWithBE", {})
    return slo.get("cpuSuppressThresholdPercent")


def set_threshold(cluster: Kubernetes, percent: int) -> bool:
    strategy = {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": percent}}
    patch = json.dumps({"data": {"resource-threshold-config": json.dumps(strategy)}})
    return cluster.kubectl("-n", NAMESPACE, "patch", "configmap", CONFIG, "-p", patch, check=False).returncode == 0


def times_listed_again(cluster: Kubernetes, workload: str) -> int:
    log = cluster.kubectl("-n", NAMESPACE, "logs", workload, "--all-pods=true", "--tail=-1").stdout
    return log.count("Informer lists again")


@dataclass(frozen=True)
class Compacted:
    """What happened while the API server lost its history."""

    listed_again_before: dict[str, int]
    names: list[str]
    restarts_of_the_list: int


@pytest.fixture(scope="module")
def compacted(installed: Kubernetes) -> Compacted:
    """The API server was killed and started again with an empty history, in the middle of a paged list."""
    installed.kubectl("create", "namespace", "paged")
    for number in range(4):
        installed.kubectl("-n", "paged", "create", "configmap", f"item-{number}")
    before = {workload: times_listed_again(installed, workload) for workload in WORKLOADS}

    def lose_history() -> None:
        installed.kubectl("-n", "paged", "create", "configmap", "item-4")
        installed.kill("kube-apiserver")
        compact()
        installed.start_component("kube-apiserver")

    return Compacted(before, *asyncio.run(names_in_pages(installed, lose_history)))


async def names_in_pages(cluster: Kubernetes, after_first: Callable[[], None]) -> tuple[list[str], int]:
    """Names of the ConfigMaps in pages of one, and how often the list started again."""
    names: list[str] = []
    restarts = 0
    async with Client(ClientConfig.load(cluster.kubeconfig)) as client:
        pages = client.pages(resource_of(ConfigMap), "paged", limit=1)
        async for page in pages:
            if page is None:
                names.clear()
                restarts += 1
                continue
            names += [json.loads(bytes(item))["metadata"]["name"] for item in page.items or ()]
            if len(names) == 1 and not restarts:
                after_first()
    return names, restarts


def test_a_paged_list_starts_again_after_compaction(compacted: Compacted) -> None:
    """The continue token is answered with 410: the list starts again, complete and without duplicates."""
    assert compacted.restarts_of_the_list == 1
    assert sorted(compacted.names) == [*(f"item-{number}" for number in range(5)), "kube-root-ca.crt"]


def test_components_resume_after_compaction(installed: Kubernetes, compacted: Compacted) -> None:
    """Old watches are answered with 410: every component lists again, and everything works."""
    for workload, before in compacted.listed_again_before.items():
        wait_for(
            lambda: times_listed_again(installed, workload) > before,  # noqa: B023
            f"{workload} lists again",
            RECOVERY_S,
        )
    wait_for(lambda: set_threshold(installed, 61), "the configuration can be changed", RECOVERY_S)
    wait_for(lambda: threshold(installed) == 61, "the manager writes NodeSLO", RECOVERY_S)
    create_and_place(installed, "after-compaction")
    last = report_time(installed)
    wait_for(lambda: report_time(installed) != last, "koordlet reports again", RECOVERY_S)


def test_components_take_renewed_tokens(installed: Kubernetes) -> None:
    """The key of ServiceAccount tokens changes: no token in use is valid, and the kubelet writes new ones."""
    restarted = restarts(installed, "koordlet")
    refused = koordlet_log().count("401 Unauthorized")
    for name in ("kube-apiserver", "kubelet"):
        installed.kill(name)
    key = str(installed.folder / "pki/accounts.key")
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    installed.start_component("kube-apiserver")
    last = report_time(installed)
    wait_for(lambda: koordlet_log().count("401 Unauthorized") > refused, "koordlet's token is refused", RECOVERY_S)
    installed.start_component("kubelet")
    wait_for(lambda: report_time(installed) != last, "koordlet reports again", 240.0)
    create_and_place(installed, "after-renewal", 240.0)
    for workload in WORKLOADS:
        installed.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=300s")
    assert restarts(installed, "koordlet") == restarted


def restarts(cluster: Kubernetes, component: str) -> dict[str, int]:
    pods = get(cluster, "pods", "-n", NAMESPACE, "-l", f"koord-app={component}")["items"]
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
