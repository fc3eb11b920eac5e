"""The part of the kubelet's pod-resources API that koordlet's proxy changes, generated from `api.proto` by
`scripts/gen_proto.py` (see `koordlet.api.hooks`)."""

SERVICE = "v1.PodResourcesLister"
