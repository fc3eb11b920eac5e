"""Admission: the checks and changes of a write between authorization and storage.

`AdmissionChain` implements `policyinterfaces.Admission`:

    admission = AdmissionChain(store, rbac, webhook_hosts={"ns/service": "127.0.0.1:9443"})
    registry = ObjectRegistry(…, admission=admission)
    …
    await admission.close()

Order of mutation: namespace, service account, priority, tolerations, mutating webhooks. Order of validation:
namespace again (it may have changed during admission), rights granted by roles, validating webhooks. The registry
applies schema defaults and validation before and after these two.
"""

from __future__ import annotations

from collections.abc import Mapping

from control.standalone.admission import namespaces, pods
from control.standalone.admission.client import WebhookClient
from control.standalone.admission.endpoints import WebhookEndpoints
from control.standalone.admission.webhooks import Webhooks
from control.standalone.auth import escalation
from control.standalone.auth.rbac import RBAC
from control.standalone.policyinterfaces import SYSTEM, AdmissionAttributes
from control.standalone.store import ObjectStore

__all__ = ["AdmissionChain"]


class AdmissionChain:
    """Implements `policyinterfaces.Admission`. Without `rbac` the rights that roles grant are not checked."""

    def __init__(
        self, store: ObjectStore, rbac: RBAC | None = None, webhook_hosts: Mapping[str, str] | None = None
    ) -> None:
        self._store = store
        self._rbac = rbac
        self._client = WebhookClient(WebhookEndpoints(store, webhook_hosts))
        self._webhooks = Webhooks(store, self._client)

    async def mutate(self, request: AdmissionAttributes) -> None:
        namespaces.check(self._store, request)
        if pods.applies(request):
            await pods.service_account(self._store, request)
            pods.priority(self._store, request)
            pods.tolerations(request)
        await self._webhooks.mutate(request)

    async def validate(self, request: AdmissionAttributes) -> None:
        namespaces.check(self._store, request)
        if self._rbac is not None and request.user is not SYSTEM:
            escalation.check(self._rbac, request)
        await self._webhooks.validate(request)

    async def close(self) -> None:
        """Close connections to webhooks."""
        await self._client.close()
