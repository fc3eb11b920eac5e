"""Cgroup files: the registry of resources, codecs, readers, the read cache, batch reads, and the names of
directories."""
