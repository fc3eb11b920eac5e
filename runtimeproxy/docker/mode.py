"""Docker mode as the process sees it (spec 08 §12)."""

from __future__ import annotations

from runtimeproxy.cri.recover import BackendError
from runtimeproxy.docker.api import DockerApi, DockerError
from runtimeproxy.docker.server import DockerServer, serve_docker
from runtimeproxy.hooks.dispatch import Dispatcher
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.options import Options
from runtimeproxy.store import Store


class DockerMode:
    """A `server.ProtocolSide`."""

    def __init__(self, options: Options, dispatcher: Dispatcher, skip: SkipRule, metrics: ProxyMetrics) -> None:
        self._options, self._dispatcher, self._skip, self._metrics = options, dispatcher, skip, metrics
        self._store = Store()
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
                limit=options.hook_timeout,
            )
        except DockerError as error:
            raise BackendError(str(error)) from error

    async def settle(self) -> None:
        if self._server is not None:
            await self._server.settle()

    async def healthy(self) -> str | None:
        try:
            await DockerApi(self._options.backend_path, seconds=5.0).ping()
        except DockerError as error:
            return f"runtime: {error}"
        return None

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(self._options.stop_timeout)
