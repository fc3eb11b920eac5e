"""The few messages of a container runtime's CRI that the runtime proxy looks into (spec 08 §11), generated from
`api.proto` by `scripts/gen_proto.py` (as `koordlet.api.hooks`).

`runtime.v1` and `runtime.v1alpha2` have the same wire form for all of them, so one set serves both.
"""

SERVICES = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
"""Full names of the service by version, the preferred one first."""
