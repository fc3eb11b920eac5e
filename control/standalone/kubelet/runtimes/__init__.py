"""Container runtimes of the stand-in kubelet: CRI and plain processes."""
