"""Certificate rotation of the webhook server: makes and renews certificates, writes the files, injects the caBundle
(spec 04 §1.7).

Runs on every replica. One pass reads (or makes) the certificates, writes them to the server's directory and brings both
webhook configurations to the desired state: the CA on every replica, the list of webhooks on the leader, since replicas
of two versions would undo each other's list during an upgrade. A pass runs after every change of the Secret or of a
configuration, and one minute after each success; failures are retried with back-off. The API server trusts a new CA
before the first certificate signed by it is served: the bundle with both CAs is written first, the files `SETTLE_S`
later. An empty configuration is filled when the Service has a ready endpoint: with failurePolicy Fail a webhook without
one blocks writes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from control.manager.options import WebhookEnv
from control.manager.webhookserver.certificates import Certificates, make, problem
from control.manager.webhookserver.certstore import FileStore, SecretStore
from control.manager.webhookserver.configurations import (
    MUTATING,
    VALIDATING,
    ConfigurationTarget,
    WebhookConfiguration,
    bundle_patch,
    patch,
)
from control.manager.webhookserver.server import WebhookServer
from koordlet.api.core import Secret
from koordlet.api.registry import ApiResource
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet, counter, gauge
from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, ObjectInformer, WorkQueue
from koordlet.kube.decode import KubeObject

log = get_logger(__name__)

INTERVAL_S = 60.0
REGISTER_INTERVAL_S = 1.0
"""Interval between checks for a ready endpoint while webhooks are not registered."""
SETTLE_S = 2.0
"""Time after which all API servers are assumed to use a changed webhook configuration."""
_MAX_ATTEMPTS = 5
_KEY = "webhook"


class RotationMetrics(MetricSet):
    """Metrics on the framework registry."""

    rotations = counter("koord_manager_webhook_certificates_made_total", "Generated webhook certificates.")
    checked = gauge(
        "koord_manager_webhook_certificate_checked_timestamp_seconds",
        "Unix time of the last successful check of the webhook certificate and configurations.",
    )


class SecretContention(Exception):
    """Another client keeps changing the Secret; retried with back-off."""


class Rotation:
    """It is a service: `start` it, then wait for `initialised`. Starts the server once its files exist."""

    def __init__(
        self,
        client: Client,
        env: WebhookEnv,
        server: WebhookServer,
        *,
        registry: CollectorRegistry,
        leads: Callable[[], bool],
    ) -> None:
        """`leads`: whether this replica is the leader, which alone determines the lists of webhooks."""
        self.name = "webhook-certificates"
        self._leads = leads
        self.files = FileStore(env.cert_dir)
        self.initialised = asyncio.Event()
        self.registered = asyncio.Event()
        """Set when this replica, as the leader, has brought the lists of webhooks to its version."""
        self._client = client
        self._env = env
        self._server = server
        self._clock = client.clock
        self._serving = False
        self._store: FileStore | SecretStore = (
            self.files if env.to_files else SecretStore(client, env.namespace, env.secret_name)
        )
        self._queue: WorkQueue[str] = WorkQueue(
            "webhook-controller", max_delay=INTERVAL_S, clock=client.clock, registry=registry
        )
        self._metrics = RotationMetrics.of(registry)
        self._configurations = [
            self._follow(WebhookConfiguration, env.mutating_name, resource=MUTATING),
            self._follow(WebhookConfiguration, env.validating_name, resource=VALIDATING),
        ]
        self._informers = list(self._configurations)
        if not env.to_files:
            self._informers.append(self._follow(Secret, env.secret_name, env.namespace))
        self._task: asyncio.Task[None] | None = None

    def _follow(
        self, kind: type, name: str, namespace: str | None = None, *, resource: ApiResource | None = None
    ) -> ObjectInformer[Any]:
        informer: ObjectInformer[Any] = ObjectInformer(
            self._client, kind, name, namespace, resource=resource, name=f"webhook:{name}"
        )
        informer.add_handler(on_add=self._changed, on_update=lambda _, new: self._changed(new), on_delete=self._changed)
        return informer

    def _changed(self, _: KubeObject) -> None:
        self._queue.add(_KEY)

    def leadership_changed(self) -> None:
        """Run a pass soon: a new leader brings the lists of webhooks to its own version."""
        self._queue.add(_KEY)

    async def start(self) -> None:
        for informer in self._informers:
            await informer.start()
        self._queue.add(_KEY)
        self._task = asyncio.create_task(self._queue.work(self._pass), name=self.name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_tasks(task)
        await self._queue.shutdown()
        await asyncio.gather(*(informer.stop() for informer in self._informers))
        if self._serving:
            await self._server.stop()

    def missing(self) -> str:
        """Which webhook configurations are not installed or not readable, and what to do; empty if both are."""
        problems = [
            f"{informer.object_name}: {informer.problem or 'not installed; apply deploy/manager'}"
            for informer in self._configurations
            if informer.object is None
        ]
        return "; ".join(problems)

    async def _pass(self, _: str) -> float:
        for informer in self._configurations:
            await informer.synced.wait()
        certs = await self._certificates()
        served = self.files.current()
        if served is None or served.data() != certs.data():
            if self._serving and served is not None and served.ca_cert != certs.ca_cert:
                await self._configure(certs.after(served.ca_cert, self._clock.now()).bundle, leads=False)
                await self._clock.sleep(SETTLE_S)
            self.files.replace(certs)
            log.info("Wrote the webhook certificates", directory=str(self.files.directory))
        if not self._serving:
            await self._server.start()
            self._serving = True
        self._server.reload()
        leads = self._leads()
        registered = await self._configure(certs.bundle, leads=leads)
        self.initialised.set()
        if not registered:
            return REGISTER_INTERVAL_S if leads else INTERVAL_S
        if leads:
            self.registered.set()
        self._metrics.checked.set(self._clock.now())
        return INTERVAL_S

    async def _certificates(self) -> Certificates:
        """The stored certificates, or new ones if they are missing, invalid or about to expire."""
        name = self._env.dns_name
        for _ in range(_MAX_ATTEMPTS):
            stored = await self._store.read()
            now = datetime.fromtimestamp(self._clock.now(), UTC)
            reason = problem(stored.certificates, name, now) if stored.certificates is not None else "there are none"
            if stored.certificates is not None and reason is None:
                certs = stored.certificates.without_expired_ca(now.timestamp())
                if certs == stored.certificates:
                    return certs
            else:
                log.info("Generating webhook certificates", name=name, reason=reason)
                # In a thread: two RSA keys take up to one second, during which webhooks must be answered.
                certs = await asyncio.to_thread(make, name, now, stored.certificates)
                self._metrics.rotations.inc()
                served = self.files.current()
                if stored.certificates is None and served is not None and self._serving:
                    # The Secret was deleted to force a rotation: keep trusting the CA in use.
                    certs = certs.after(served.ca_cert, now.timestamp())
            if await self._store.write(certs, stored.version):
                return certs
        raise SecretContention("the Secret of the webhook certificates was changed concurrently in every attempt")

    async def _configure(self, bundle: bytes, *, leads: bool) -> bool:
        """Bring both configurations to the desired state; False if an empty one stays so until an endpoint is ready.
        Replicas that do not lead only replace the CA: those of two versions would undo each other's lists.
        Raises KubeError (also when a configuration is missing)."""
        target = ConfigurationTarget(self._env, self._server.port, self._server.handlers.keys(), bundle)
        registered = True
        for informer, resource in zip(self._configurations, (MUTATING, VALIDATING), strict=True):
            configuration = await self._client.get(WebhookConfiguration, informer.object_name, resource=resource)
            body = patch(resource.kind, configuration, target) if leads else bundle_patch(configuration, target)
            if body is None:
                registered = registered and (leads or bool(configuration.webhooks))
                continue
            if not configuration.webhooks and not await self._reachable():
                registered = False
                continue
            await self._client.patch(WebhookConfiguration, informer.object_name, body=body, resource=resource)
            log.info("Updated a webhook configuration", kind=resource.kind, webhooks=len(body["webhooks"]))
        return registered

    async def _reachable(self) -> bool:
        """Whether the API server can call the webhooks: by URL at once, by Service when that has a ready endpoint."""
        if self._env.host:
            return True
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._env.namespace}/endpointslices"
        selector = f"kubernetes.io/service-name={self._env.service_name}"
        slices = json.loads(await self._client.raw("GET", path, params={"labelSelector": selector}))["items"]
        endpoints = (endpoint for endpoint_slice in slices for endpoint in endpoint_slice.get("endpoints") or ())
        return any((endpoint.get("conditions") or {}).get("ready", True) for endpoint in endpoints)
