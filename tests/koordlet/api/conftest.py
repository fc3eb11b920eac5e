"""Properties of the wire are about values, never about time: no deadline for an example."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
