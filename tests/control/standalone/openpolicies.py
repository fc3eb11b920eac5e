"""Policies that accept everything, for tests of the registry alone."""

from __future__ import annotations

from typing import Any

from control.standalone.errors import FieldError
from control.standalone.kinds import ResourceKind
from control.standalone.policyinterfaces import AdmissionAttributes

Json = dict[str, Any]


class OpenSchemas:
    """Has no schema and accepts everything."""

    def unknown_fields(self, kind: ResourceKind, version: str, obj: Json, old: Json | None = None) -> list[str]:
        return []

    def default(self, kind: ResourceKind, version: str, obj: Json) -> None:
        return None

    def complete(self, kind: ResourceKind, version: str, obj: Json) -> None:
        return None

    def zero(self, kind: ResourceKind, version: str) -> Json:
        return {}

    def validate(
        self, kind: ResourceKind, version: str, obj: Json, old: Json | None, subresource: str
    ) -> list[FieldError]:
        return []

    def merge_schema(self, kind: ResourceKind, version: str) -> Any:
        return None


class OpenAdmission:
    """Admits everything unchanged."""

    async def mutate(self, request: AdmissionAttributes) -> None:
        return None

    async def validate(self, request: AdmissionAttributes) -> None:
        return None
