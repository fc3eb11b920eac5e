"""Runs containerd on a machine without one: images made offline, configuration, slice paths, clean-up."""
