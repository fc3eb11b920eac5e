"""Translates CPU and memory of batch and mid pods to extended resources (spec 04 §11.3), and stores them in an
annotation (§11.4). Pure.

Both work on the plain JSON pod and preserve the text of every resource that they do not move.
"""

from __future__ import annotations

from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.objects import Json, containers, own_annotations, typed
from koordlet.api import names
from koordlet.api.annotations.pod import EXTENDED_RESOURCE_SPEC, extended_resource_update
from koordlet.api.core import Pod
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError, dec_hook
from koordlet.api.priority import priority_class
from koordlet.api.resources import translate_name

_NATIVE = (names.RESOURCE_CPU, names.RESOURCE_MEMORY)


def quantity(value: object) -> Quantity:
    """A resource amount from its JSON value (text or number)."""
    amount = dec_hook(Quantity, value)
    assert isinstance(amount, Quantity)
    return amount


def translate_pod(pod: Json) -> None:
    """Replace cpu and memory of a pod of class batch or mid by the extended resources of its class.

    Applies to init containers, containers and overhead. A limit without a request is also set as request.
    """
    priority = priority_class(typed(pod, Pod))
    table = {native: translate_name(priority, native) for native in _NATIVE}
    table = {native: extended for native, extended in table.items() if native != extended}
    if not table:
        return
    for container in containers(pod, init=True):
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            _move(resources.get(kind) or {}, table)
        limits = resources.get("limits") or {}
        for extended in table.values():
            if extended in limits:
                if resources.get("requests") is None:
                    resources["requests"] = {}
                resources["requests"].setdefault(extended, limits[extended])
    _move((pod.get("spec") or {}).get("overhead") or {}, table)


def _move(amounts: Json, table: dict[str, str]) -> None:
    for native, extended in table.items():
        if native in amounts:
            amount = quantity(amounts.pop(native))
            amounts[extended] = str(Quantity.of(amount.milli_value()) if native == names.RESOURCE_CPU else amount)


def keep_extended_resources(pod: Json) -> None:
    """Write the batch resources of the regular containers into the annotation that koordlet reads.

    Raises MutationError when the pod already has a malformed annotation.
    """
    view = typed(pod, Pod)
    try:
        EXTENDED_RESOURCE_SPEC.get(view.metadata.annotations)
    except WireError as error:
        raise MutationError(str(error)) from error
    text = extended_resource_update(view)
    if text is not None:
        own_annotations(pod)[EXTENDED_RESOURCE_SPEC.key] = text
