"""The Node object, and the API requests of a kubelet."""
