"""The mutation of a new Reservation: profiles applied to its metadata and its pod template (spec 04 §18). Pure.

Like for pods, but without namespace selectors (Reservations have no namespace) and without translation of resources.
"""

from __future__ import annotations

import copy

from control.manager.webhooks import podschema
from control.manager.webhooks.objects import Json, child
from control.manager.webhooks.podmutating import MutationInputs
from control.manager.webhooks.profiles import apply_profile, percent, skipped


def mutate_reservation(reservation: Json, inputs: MutationInputs) -> Json:
    """The mutated copy of a new Reservation. Raises MutationError."""
    result = copy.deepcopy(reservation)
    for profile in inputs.matched.profiles:
        if skipped(percent(profile), inputs.rand, strict_parity=inputs.strict_parity):
            continue
        template = (result.get("spec") or {}).get("template")
        pod_spec = child(template, "spec") if isinstance(template, dict) else None
        classes = inputs.priority_classes
        result = apply_profile(result, profile, classes, pod_spec=pod_spec, schema=podschema.RESERVATION)
    return result
