"""Strategic merge patch: the algorithm is `koordlet.api.encoding.strategicmerge`, the schemas are the API server's."""

from koordlet.api.encoding.strategicmerge import StrategicPatchError, apply

__all__ = ["StrategicPatchError", "apply"]
