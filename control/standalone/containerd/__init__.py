"""containerd for a machine without one running: its images (made here, offline), configuration and slices."""
