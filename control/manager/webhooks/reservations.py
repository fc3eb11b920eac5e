"""What admission makes of a new Reservation: the profiles, on its own metadata and its pod template (spec 04 §18).

As for pods, but without namespaces (Reservations have none) and without translation of resources.
"""

from __future__ import annotations

import copy

from control.manager.webhooks import podschema
from control.manager.webhooks.objects import Json, child
from control.manager.webhooks.podmutating import Knowledge
from control.manager.webhooks.profiles import apply_profile, percent, skipped


def mutate_reservation(reservation: Json, known: Knowledge) -> Json:
    """A new Reservation as it should be; the argument stays as it is. Raises MutationError."""
    result = copy.deepcopy(reservation)
    for profile in known.matched.profiles:
        if skipped(percent(profile), known.rand, strict_parity=known.strict_parity):
            continue
        template = (result.get("spec") or {}).get("template")
        pod_spec = child(template, "spec") if isinstance(template, dict) else None
        result = apply_profile(result, profile, known.priority_classes, pod_spec=pod_spec, schema=podschema.RESERVATION)
    return result
