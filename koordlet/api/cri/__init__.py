"""The CRI messages that the runtime proxy decodes (spec 08 §11), generated from `api.proto` by `scripts/gen_proto.py`
(see `koordlet.api.hooks`).

Their wire format is the same in `runtime.v1` and `runtime.v1alpha2`, so one set of messages serves both.
"""

SERVICES = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
"""Full names of the service by version, the preferred one first."""
