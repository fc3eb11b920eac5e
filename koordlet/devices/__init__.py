"""Accelerators: description, utilisation and health. Reads drivers and sysfs; keeps no series and writes nothing."""
