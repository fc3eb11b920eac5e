"""koord-runtime-proxy: a transparent CRI proxy between the kubelet and a container runtime.

It calls hook servers before a container is created, started or updated, and forwards everything else unchanged.
`hooks` and `store` are independent of the protocol: which hook server is called and what its response may change. `cri`
and `docker` know the runtimes' messages, `http2` and `docker.link` transport the bytes. The proxy uses koordlet only
through its gRPC API (spec 08 §7-§12).
"""

USER_AGENT = "koord-runtime-proxy"
"""User agent in calls to gRPC servers."""
