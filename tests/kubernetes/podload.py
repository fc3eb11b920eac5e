"""Pods that are created and deleted all the time, to show that an installation rejects none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kubernetes.components import Kubernetes
from tests.kubernetes.installation import NAMESPACE
from tests.kubernetes.processes import wait_for

KINDS = "crd,clusterrole,clusterrolebinding,priorityclass,mutatingwebhookconfiguration,validatingwebhookconfiguration"
OURS = ("koord", "scheduling.sigs", "topology.node")


class PodLoad:
    """Creates and deletes pods of the default namespace in a thread; keeps every refusal."""

    def __init__(self, cluster: Kubernetes) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()
        self.created = 0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}
        while not self._stopped.is_set():
            name = f"load-{self.created}-{len(self.failures)}"
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**spec, "nodeName": "none"}}
            done = self._cluster.kubectl("create", "-f", "-", text=json.dumps(pod), check=False)
            if done.returncode:
                self.failures.append(done.stderr)
            else:
                self.created += 1
                self._cluster.kubectl("delete", "pod", name, "--force", "--wait=false", check=False)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def more(self) -> None:
        """Wait for further pods; none was refused."""
        before = self.created
        wait_for(lambda: self.created > before + 3, "pods are created")
        assert not self.failures, self.failures[:3]


@contextmanager
def pod_load(cluster: Kubernetes) -> Iterator[PodLoad]:
    wait_for(
        lambda: cluster.kubectl("get", "serviceaccount", "default", check=False).returncode == 0,
        "the default namespace has its account",
    )
    running = PodLoad(cluster)
    try:
        yield running
    finally:
        running.stop()


def left_in_cluster(cluster: Kubernetes) -> list[str]:
    """What an uninstallation has not removed."""
    names = cluster.kubectl("get", KINDS, "-o", "name").stdout.split()
    names += cluster.kubectl("get", "namespace", NAMESPACE, "-o", "name", "--ignore-not-found").stdout.split()
    return [name for name in names if any(part in name for part in OURS)]


def webhook_policies(cluster: Kubernetes) -> set[str]:
    """The failure policies of the registered webhooks."""
    name, path = "koordinator-mutating-webhook-configuration", "jsonpath={.webhooks[*].failurePolicy}"
    return set(cluster.kubectl("get", "mutatingwebhookconfiguration", name, "-o", path).stdout.split())
