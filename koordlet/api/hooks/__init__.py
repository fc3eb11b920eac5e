"""The runtime hook service of spec 01 §8, as generated from `api.proto`.

`api_pb2` (messages) and `api_pb2_grpc` (stub, servicer) are made by `scripts/gen_proto.py`, which
`make proto` and every package build run; they are not kept in the repository. Served by koordlet's
runtime hooks, called by the runtime proxy.
"""

SERVICE = "runtime.v1alpha1.RuntimeHookService"
"""Full name of the service, for reflection and health checks."""
