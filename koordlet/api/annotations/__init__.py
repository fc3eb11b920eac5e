"""The annotations and label values of the protocol as typed values (spec 01 §5), by theme.

`pod` (QoS and eviction knobs), `scheduling`, `reservation`, `device`, `gang`, `quota`, `node`, `topology`.
JSON annotations are `Annotation` objects with `get`, `text` and `put`; what is not JSON, or has rules beyond
parsing, is a function. `koordlet.api.names` has the keys.
"""

from koordlet.api.annotations._base import Annotation, DefaultAnnotation

__all__ = ["Annotation", "DefaultAnnotation"]
