"""CPU and memory of batch and mid pods become extended resources (spec 04 §11.3), kept in an annotation too (§11.4).

Both work on the plain pod and leave every resource that they do not move as it was written, down to its text.
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
    """A resource amount as it stands in JSON (text or number)."""
    found = dec_hook(Quantity, value)
    assert isinstance(found, Quantity)
    return found


def translate_pod(pod: Json) -> None:
    """Move cpu and memory of a pod of class batch or mid to the resources of its class.

    Init containers, containers and overhead; a limit without a request becomes the request as well.
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
    """Write the batch resources of the regular containers into the annotation that the node reads.

    Raises MutationError when the pod has such an annotation that can't be read.
    """
    view = typed(pod, Pod)
    try:
        EXTENDED_RESOURCE_SPEC.get(view.metadata.annotations)
    except WireError as error:
        raise MutationError(str(error)) from error
    text = extended_resource_update(view)
    if text is not None:
        own_annotations(pod)[EXTENDED_RESOURCE_SPEC.key] = text
