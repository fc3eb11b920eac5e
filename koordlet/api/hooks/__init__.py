"""The runtime hook service of spec 01 §8, generated from `api.proto`.

`scripts/gen_proto.py`, which `make proto` and every package build run, generates `api_pb2` (messages) and
`api_pb2_grpc` (stub, servicer); they are not in the repository. koordlet's runtime hooks serve it, the runtime proxy
calls it.
"""

SERVICE = "runtime.v1alpha1.RuntimeHookService"
"""Full name of the service, for reflection and health checks."""
