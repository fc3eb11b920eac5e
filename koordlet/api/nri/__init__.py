"""What koordlet speaks with a container runtime as its NRI plugin, generated from `api.proto` and `ttrpc.proto` by
`scripts/gen_proto.py` (as `koordlet.api.hooks`)."""

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
