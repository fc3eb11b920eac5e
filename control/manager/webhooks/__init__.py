"""The manager's admission rules: how objects are mutated, and which are refused (spec 04 §10-§18).

`profiles`, `translation`, `devices`, `quotatree`, `podmutating`, `podvalidating`, `enhanced`, `binding`, `nodes` and
`reservations` are pure functions over plain JSON objects or structs. The handlers in `mutatehooks`, `validatehooks` and
`objecthooks` read the caches and call them.
"""
