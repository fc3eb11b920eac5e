"""Admission of the manager: what is written onto objects, and what is refused (spec 04 §10-§18).

One idea a module, decisions first: `profiles`, `translation`, `devices`, `quotatree`, `podmutating`, `podvalidating`,
`enhanced`, `binding`, `nodes`, `reservations` are pure functions over plain JSON objects. `handlers` reads caches
and asks them.
"""
