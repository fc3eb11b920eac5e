"""A fake kubelet older than 1.24: pods as Docker containers, with dockershim's names and labels."""

from __future__ import annotations

from pathlib import Path

from tests.runtimeproxy.firstlook import Ground, Kubelet, Look, RunningPod, read_looks
from tests.runtimes.daemons import Dockerd
from tests.runtimes.pods import FOREVER


class Dockershim(Kubelet):
    """`endpoint`: the proxy's; containers' output is read through `docker` directly."""

    def __init__(self, ground: Ground, folder: Path, docker: Dockerd, endpoint: Path) -> None:
        super().__init__(ground, folder, endpoint)
        self._docker = docker

    def sandbox(self, pod: RunningPod) -> None:
        pod.runtime = "docker"
        labels = {"koordinator.sh/qosClass": pod.spec.qos, "io.kubernetes.docker.type": "podsandbox"}
        labels |= {f"annotation.{name}": text for name, text in pod.spec.annotations.items()}
        pod.sandbox = self._make(pod, "POD", labels, ["--cpu-shares=2"], FOREVER)

    def start(self, pod: RunningPod, name: str) -> None:
        pod.attempts[name] = pod.attempts.get(name, -1) + 1
        labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": pod.sandbox}
        pod.containers[name] = self._make(pod, name, labels, self._wanted(pod, name), ("/bin/sh", "-c", self.program))

    def update(self, pod: RunningPod, name: str) -> None:
        self._ask("update", *self._wanted(pod, name), pod.containers[name])

    def restart(self, pod: RunningPod, name: str) -> None:
        self._ask("stop", "--time=0", pod.containers[name])
        self._ask("rm", pod.containers[name])
        self.start(pod, name)

    def end(self, pod: RunningPod) -> None:
        for container in (*pod.containers.values(), pod.sandbox):
            self._ask("stop", "--time=0", container)
            self._ask("rm", container)

    def _make(
        self, pod: RunningPod, name: str, labels: dict[str, str], flags: list[str], program: tuple[str, ...]
    ) -> str:
        full = f"k8s_{name}_{pod.spec.name}_default_{pod.uid}_{pod.attempts.get(name, 0)}"
        flags = [*flags, *(f"--label={key}={value}" for key, value in labels.items())]
        place = (f"--name={full}", f"--cgroup-parent={self._parent(pod)}", "--network=host")
        answer = self._ask("create", *place, *flags, "busybox", *program)
        self._ask("start", answer)
        return answer

    def _parent(self, pod: RunningPod) -> str:
        return f"/{pod.dir}"

    def _wanted(self, pod: RunningPod, name: str) -> list[str]:
        """As flags of `docker create` and `docker update`; 0: not set."""
        resources = self.resources(pod, name)
        amounts = {
            "cpu-shares": resources.cpu_shares,
            "cpu-period": resources.cpu_period if resources.cpu_quota else 0,
            "cpu-quota": resources.cpu_quota,
            "memory": resources.memory_limit_in_bytes,
            "memory-swap": resources.memory_limit_in_bytes,
        }
        return [f"--{flag}={amount}" for flag, amount in amounts.items() if amount]

    def _looks(self, pod: RunningPod, name: str) -> list[Look]:
        return read_looks(self._said(pod.containers[name]).splitlines(keepends=True), self.shape)

    def _said(self, container: str) -> str:
        return self._docker.docker("logs", container).stdout

    def _ask(self, *words: str) -> str:  # type: ignore[override]
        return self._docker.docker(*words, host=self.socket).stdout.strip()
