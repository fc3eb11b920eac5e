"""The HTTPS server of the stand-in kubelet."""
