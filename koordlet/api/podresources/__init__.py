"""The kubelet's pod-resources API, as much of it as is changed, generated from `api.proto` by `scripts/gen_proto.py`
(as `koordlet.api.hooks`)."""

SERVICE = "v1.PodResourcesLister"
