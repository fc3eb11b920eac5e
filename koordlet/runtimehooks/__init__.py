"""Settings of pods and containers by their class (spec 03 §4): strategies that follow pods, and hooks that the
container runtime calls before it starts a pod or container. `stages` has the plugin interface, `hooks` one plugin per
file, `calls` one hook call, `protocols` gRPC and NRI.
"""
