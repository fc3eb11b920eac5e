"""Strategic merge patch: the algorithm of `koordlet.api.encoding.strategicmerge`, with the API server's schemas."""

from koordlet.api.encoding.strategicmerge import StrategicPatchError, apply

__all__ = ["StrategicPatchError", "apply"]
