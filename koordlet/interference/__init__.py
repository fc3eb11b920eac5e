"""Who waits, for what, because of whom: interference between containers, decided from what the collectors measured.

`model` (evidence in, verdicts out), `baseline` (what is usual for a container), `detector` (the decision, pure),
`cpu` and `gather` (evidence from collectors), `history` (the last minutes), `service` (one step a second and where its
results go). Definitions and formulas: docs/interference.md.
"""
