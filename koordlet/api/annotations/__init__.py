"""The annotations and label values of the protocol as typed values (spec 01 §5), by theme.

`pod` (QoS and eviction settings), `scheduling`, `reservation`, `device`, `gang`, `quota`, `node`, `topology`.
JSON annotations are `Annotation` objects with `get`, `text` and `put`. Values that are not JSON, or have rules beyond
parsing, have a function. The keys are in `koordlet.api.names`. All modules are pure.
"""

from koordlet.api.annotations._base import Annotation, DefaultAnnotation

__all__ = ["Annotation", "DefaultAnnotation"]
