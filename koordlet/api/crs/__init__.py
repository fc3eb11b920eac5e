"""The custom resources of Koordinator's API groups."""
