"""The cgroup tree that the stand-in kubelet makes, in the layout of the real kubelet."""
