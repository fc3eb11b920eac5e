"""The proxy of the kubelet's pod-resources API (spec 08 §6)."""
