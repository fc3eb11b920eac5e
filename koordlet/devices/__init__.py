"""Accelerators: what they are, how busy, how healthy. Asks drivers and sysfs; keeps no series and writes nothing."""
