"""Figures by subject of the probes: CPU, memory, disk and network stalls, out-of-memory kills, and their culprits."""
