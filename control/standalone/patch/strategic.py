"""Strategic merge patch: the algorithm is `koordlet.api.strategicmerge`, the schemas are the API server's."""

from koordlet.api.strategicmerge import StrategicPatchError, apply

__all__ = ["StrategicPatchError", "apply"]
