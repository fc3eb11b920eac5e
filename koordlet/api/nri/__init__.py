"""The messages between koordlet as NRI plugin and a container runtime, generated from `api.proto` and `ttrpc.proto` by
`scripts/gen_proto.py` (see `koordlet.api.hooks`)."""

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
