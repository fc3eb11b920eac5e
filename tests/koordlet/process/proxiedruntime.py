"""containerd behind koord-runtime-proxy, for tests that kill the proxy: one container that must go on running, and the
calls of another container's life through the proxy."""

from __future__ import annotations

from koordlet.api.cri import api_pb2 as cri
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Containerd, CriCalls
from tests.runtimes.pods import container_config, sandbox_config

SERVICE = "RuntimeService"


class ProxiedRuntime:
    """Both run when the constructor returns."""

    def __init__(self) -> None:
        self.containerd = Containerd(wrapper=False)
        self.proxy = ProxyProcess(self.containerd.socket)
        self._calls = CriCalls(self.proxy.socket)
        self._made = 0
        try:
            self.containerd.start()
            self.containerd.import_images()
            self.proxy.start()
            self._config = sandbox_config(self.containerd.cgroup_parent())
            request = cri.RunPodSandboxRequest(config=self._config)
            answer = self._calls.call(SERVICE, "RunPodSandbox", request, cri.RunPodSandboxResponse)
            self._sandbox = answer.pod_sandbox_id
            self._kept = self._container()
        except BaseException:
            self.close()
            raise

    def wrong(self) -> list[str]:
        """What the proxy loses or refuses, in words, after the life of one container."""
        short = self._container()
        running = self._running()
        wrong = [
            f"container {container[:12]} does not run" for container in (self._kept, short) if container not in running
        ]
        self._calls.call(SERVICE, "StopContainer", cri.StopContainerRequest(container_id=short))
        self._calls.call(SERVICE, "RemoveContainer", cri.ContainerRequest(container_id=short))
        if self._running() != {self._kept}:
            wrong.append(f"container {short[:12]} was removed and runs")
        return wrong

    def close(self) -> None:
        self.proxy.close()
        if self.containerd.process is not None:
            self.containerd.remove_pods()
        self.containerd.close()

    def _container(self) -> str:
        self._made += 1
        config = container_config(name=f"c{self._made}")
        request = cri.CreateContainerRequest(pod_sandbox_id=self._sandbox, config=config, sandbox_config=self._config)
        created: str = self._calls.call(SERVICE, "CreateContainer", request, cri.CreateContainerResponse).container_id
        self._calls.call(SERVICE, "StartContainer", cri.ContainerRequest(container_id=created))
        return created

    def _running(self) -> set[str]:
        request = cri.ListContainersRequest()
        answer = self._calls.call(SERVICE, "ListContainers", request, cri.ListContainersResponse)
        return {container.id for container in answer.containers if container.state == cri.CONTAINER_RUNNING}
