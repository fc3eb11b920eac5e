"""The CustomResourceDefinitions, generated once: that takes a tenth of a second."""

from __future__ import annotations

from koordlet.api.encoding import crdgen

CRDS = tuple(crdgen.documents().values())
