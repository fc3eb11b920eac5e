"""Interference detection: which containers are delayed, on which resource, and which culprits cause the delay.

Data flow, once a second: `evidence` collects one `model.Evidence` from a list of evidence sources (`cpusource` over
`cpu` and `attribution`; `sources` for memory, disks, network and cache), `detector` turns it into verdicts (pure), with
`baseline` holding each container's usual values. `evaluator` runs one evaluation and notifies `alarms` (log, audit log,
Events); `history` keeps the last minutes; `views` serves metrics and pages. `cadence` decides how often all this runs,
and `service` puts the package together. Definitions and formulas: docs/interference.md.
"""
