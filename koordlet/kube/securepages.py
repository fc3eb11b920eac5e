"""HTTPS pages for callers that the API server authorizes: certificate and reviews, by the flags of PageOptions."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.flags import FlagError
from koordlet.app.pageoptions import PageOptions
from koordlet.app.periodic import Periodic
from koordlet.app.servertls import RELOAD_PERIOD_S, ServerCertificate
from koordlet.kube.client import Client
from koordlet.kube.config import ClientConfig
from koordlet.kube.delegated import DelegatedAuth

REVIEW_QPS: Final = 100.0
REVIEW_BURST: Final = 200
"""Reviews of all callers: they have their own limit, so that a flood of callers delays no other request."""


class SecurePages:
    """`tls` and `middleware` are for the HttpServer; `services` are for the runner."""

    def __init__(
        self,
        options: PageOptions,
        config: ClientConfig,
        *,
        registry: CollectorRegistry,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`config`: of an account that may create TokenReviews and SubjectAccessReviews. Raises FlagError for unusable
        certificates."""
        files = (options.tls_cert_file, options.tls_private_key_file, options.client_ca_file)
        try:
            cert, key, client_ca = (Path(name) if name else None for name in files)
            self._certificate = ServerCertificate(cert, key, client_ca)
        except OSError as error:  # includes SSLError
            raise FlagError(f"--tls-cert-file, --client-ca-file: {', '.join(filter(None, files))}: {error}") from error
        self._client = Client(replace(config, qps=REVIEW_QPS, burst=REVIEW_BURST), clock=clock, registry=registry)
        self.tls = self._certificate.context
        self.middleware = DelegatedAuth(self._client).middleware
        self.reload = Periodic(
            "page-certificate",
            RELOAD_PERIOD_S,
            self._certificate.reload,
            immediate=False,
            clock=clock,
            registry=registry,
        )

    @staticmethod
    def of(secure: SecurePages | None) -> tuple[ssl.SSLContext | None, tuple[Middleware, ...]]:
        """Arguments `tls` and `middlewares` of a server; None: plain HTTP for every caller."""
        return (None, ()) if secure is None else (secure.tls, (secure.middleware,))

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._client.close()
