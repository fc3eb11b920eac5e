"""Sources of pages: URLs of this machine, or pods of a cluster behind its API server.

Who may read a page is decided by the pod, which queries the API server (`koordlet.kube.delegated`). It is sent a token
of the ServiceAccount `koordinator-view`, requested for ten minutes, and never the user's own credentials: the
certificate of the pod is not verified, and a client certificate could not be passed on. The API server decides and logs
who may request that token.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from control.ctl.cluster.podproxy import PageRelay, proxied
from control.ctl.cluster.pods import Directory
from control.ctl.cluster.portforward import Forwarder, PodPort, forwarded
from control.ctl.errors import CtlError
from control.manifestfiles import VIEWER
from koordlet.api.names import KOORDINATOR_NAMESPACE, PAGE_TOKEN_HEADER, PAGES_AUDIENCE
from koordlet.kube import Client, ClientConfig, KubeError
from koordlet.kube.errors import ConfigError

TOKEN_SECONDS: Final = 600
REQUEST_TIMEOUT_S: Final = 10.0
PORT_FORWARD_VARIABLE: Final = "KOORDCTL_PORT_FORWARD"
"""`true`: ports are forwarded, where the API server does not reach the ports of pods."""
ROLE_HINT: Final = "Ask for the Role koordinator-view in koordinator-system (docs/koordctl.md)."


@dataclass(frozen=True)
class PageSource:
    """A server of pages; `session` is None for a URL of this machine."""

    url: str
    session: aiohttp.ClientSession | None = None


@dataclass(frozen=True)
class LocalSources:
    """URLs."""

    koordlet_url: str
    scheduler_url: str

    @asynccontextmanager
    async def koordlet(self, node: str) -> AsyncIterator[PageSource]:
        """`node` is not used: the URL is that of one koordlet."""
        yield PageSource(self.koordlet_url)

    @asynccontextmanager
    async def scheduler(self) -> AsyncIterator[PageSource]:
        yield PageSource(self.scheduler_url)


_Connection = Callable[[ClientConfig, PodPort], AbstractAsyncContextManager[tuple[str, Forwarder | PageRelay]]]
"""Yields the path of a Unix socket that is connected to the pod, and the object that knows the error if it is not."""


class ClusterSources:
    """Pods of an installed cluster. Use `opened`."""

    def __init__(self, config: ClientConfig, client: Client, *, port_forward: bool) -> None:
        self._config = config
        self._connected: _Connection = forwarded if port_forward else proxied
        self.client = client
        self.pods = Directory(client)
        self._token = ""

    @asynccontextmanager
    async def koordlet(self, node: str) -> AsyncIterator[PageSource]:
        async with self._through(await self.pods.koordlet(node)) as source:
            yield source

    @asynccontextmanager
    async def scheduler(self) -> AsyncIterator[PageSource]:
        async with self._through(await self.pods.scheduler()) as source:
            yield source

    @asynccontextmanager
    async def _through(self, port: PodPort) -> AsyncIterator[PageSource]:
        headers = await self._headers(port)
        async with self._connected(self._config, port) as (path, relay):
            connector = aiohttp.UnixConnector(path=path)
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                try:
                    yield PageSource(f"http://{port.pod}", session)
                except CtlError as error:
                    raise relay.problem or error from error

    async def _headers(self, port: PodPort) -> dict[str, str]:
        """The credentials for a port, decided here for all pages. Without TLS there are none to send. Pods of an older
        version read the first header only."""
        if not port.tls:
            return {}
        if not self._token:
            self._token = await self._view_token()
        return {"Authorization": f"Bearer {self._token}", PAGE_TOKEN_HEADER: self._token}

    async def _view_token(self) -> str:
        path = f"/api/v1/namespaces/{KOORDINATOR_NAMESPACE}/serviceaccounts/{VIEWER}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS, "audiences": [PAGES_AUDIENCE]},
        }
        try:
            return str(json.loads(await self.client.raw("POST", path, body=body))["status"]["token"])
        except KubeError as error:
            raise CtlError(f"cannot request a token of ServiceAccount {VIEWER}: {error}", ROLE_HINT) from error


@asynccontextmanager
async def opened(kubeconfig: str | None, context: str | None) -> AsyncIterator[ClusterSources]:
    """The sources of the cluster of a kubeconfig. Raises CtlError."""
    try:
        config = ClientConfig.load(kubeconfig, context=context, user_agent="koordctl", timeout=REQUEST_TIMEOUT_S)
    except ConfigError as error:
        raise CtlError(str(error), "Choose the cluster with --kubeconfig and --context.") from error
    async with Client(config) as client:
        port_forward = os.environ.get(PORT_FORWARD_VARIABLE, "").lower() == "true"
        yield ClusterSources(config, client, port_forward=port_forward)
