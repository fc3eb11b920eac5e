"""Evicts pods without the API server: stops their containers through CRI (spec 03 §3.1, `--only-evict-by-api=false`).

The pod object stays as it is, and the kubelet restarts the containers as the pod's restartPolicy requires. No
disruption budget is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from koordlet.api.cri import api_pb2 as cri
from koordlet.app.http2.client import GrpcCallError, UnaryClient
from koordlet.app.http2.grpc import GrpcStatus
from koordlet.qosmanager.engine.evictor import EvictionRefused, VictimGone
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta

STOP_CONTAINER = "/runtime.v1.RuntimeService/StopContainer"
TIMEOUT_S = 5.0
SOCKETS = (
    "containerd/containerd.sock",
    "containerd.sock",
    "crio/crio.sock",
    "crio.sock",
    "cri-dockerd.sock",
)
"""Below the host's /var/run, in the order of the search."""


class ContainerStopper:
    """Stops pods by their containers. `endpoint`: socket of the runtime; empty: the first of SOCKETS that exists."""

    remembers = False
    """A stopped pod may run again at once, so that it may be a victim again in the next round."""

    def __init__(self, var_run: Path, endpoint: str = "") -> None:
        self._sockets = [Path(endpoint.removeprefix("unix://"))] if endpoint else [var_run / name for name in SOCKETS]

    def socket(self) -> Path | None:
        """The socket to use; None: no runtime listens at the known places."""
        return next((path for path in self._sockets if path.is_socket()), None)

    @property
    def problem(self) -> str:
        """Why pods cannot be stopped; empty if a socket exists."""
        searched = ", ".join(map(str, self._sockets))
        return "" if self.socket() else f"no container runtime listens at {searched}; set --containerd-endpoint"

    async def evict(self, pod: PodMeta) -> None:
        """Stop all running containers of the pod at once, without a grace period.

        Raises VictimGone if none of them runs any more, EvictionRefused if one of them could not be stopped.
        """
        running = [container for container in pod.containers if container.running]
        if not running:
            raise VictimGone("no container of it runs")
        path = self.socket()
        if path is None:
            raise EvictionRefused(self.problem)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                client = await UnaryClient.connect(str(path), "koordlet")
        except OSError as error:  # TimeoutError is an OSError
            raise EvictionRefused(f"{path}: {error.strerror or error or 'no answer'}") from error
        try:
            await self._stop_all(client, running)
        finally:
            await client.close(0.0)

    async def _stop_all(self, client: UnaryClient, containers: Sequence[ContainerMeta]) -> None:
        results = await asyncio.gather(*(self._stop(client, container) for container in containers))
        if failures := [failure for failure in results if failure]:
            raise EvictionRefused("; ".join(failures))

    async def _stop(self, client: UnaryClient, container: ContainerMeta) -> str:
        """Why the container was not stopped; empty if it was, or no longer exists."""
        request = cri.StopContainerRequest(container_id=container.id.rpartition("://")[2], timeout=0)
        try:
            await client.call(STOP_CONTAINER, request.SerializeToString(), TIMEOUT_S)
        except GrpcCallError as error:
            return "" if error.status is GrpcStatus.NOT_FOUND else f"container {container.name}: {error}"
        return ""
