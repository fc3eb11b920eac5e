"""The victim x culprit matrix that several probes share."""
