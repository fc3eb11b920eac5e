"""Docker mode of the process (spec 08 §12)."""

from __future__ import annotations

from runtimeproxy.cri.recover import RuntimeCallError
from runtimeproxy.docker.api import DockerApi, DockerError
from runtimeproxy.docker.server import DockerServer, serve_docker
from runtimeproxy.hooks.dispatch import HookDispatcher
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.options import ProxyOptions
from runtimeproxy.store import ProxyStore


class DockerMode:
    """A `server.ProxyMode`."""

    def __init__(
        self, options: ProxyOptions, dispatcher: HookDispatcher, skip: SkipRule, metrics: ProxyMetrics
    ) -> None:
        self._options = options
        self._dispatcher = dispatcher
        self._skip = skip
        self._metrics = metrics
        self._store = ProxyStore()
        self._server: DockerServer | None = None

    async def open(self) -> None:
        options = self._options
        try:
            self._server = await serve_docker(
                options.endpoint_path,
                options.backend_path,
                self._store,
                self._dispatcher,
                self._skip,
                self._metrics,
                hook_timeout=options.hook_timeout,
            )
        except DockerError as error:
            raise RuntimeCallError(str(error)) from error

    async def settle(self) -> None:
        if self._server is not None:
            await self._server.settle()

    async def healthy(self) -> str | None:
        try:
            await DockerApi(self._options.backend_path, timeout=5.0).ping()
        except DockerError as error:
            return f"runtime: {error}"
        return None

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(self._options.stop_timeout)
