"""Templates of shared GPUs: the only parts of a model that its device plugin can cut (spec 06 §3.5.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from control.devices.inventory import amounts_of
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.api.encoding.quoting import quoted

DATA_KEY: Final = "data.yaml"
MAX_TEXT_CHARS: Final = 1 << 18
MAX_MODELS: Final = 256
MAX_TEMPLATES: Final = 256
"""Templates of a model."""

MAX_RESOURCES: Final = 16
"""Resources of a template."""

MAX_DEPTH: Final = 3
"""Nested mappings: models, templates, resources."""

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Templates = Mapping[str, Mapping[str, Mapping[str, int]]]
"""`<vendor>-<model>` -> name of the template -> amounts of one GPU."""
NO_TEMPLATES: Final[Templates] = {}


class TemplateError(ValueError):
    """The text is no table of templates; the message names the place."""


def read_templates(text: str) -> Templates:
    """Raises TemplateError."""
    if len(text) > MAX_TEXT_CHARS:
        raise TemplateError(f"{len(text)} characters are more than {MAX_TEXT_CHARS}")
    try:
        _check_shape(text)
        read = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise TemplateError(f"no YAML: {' '.join(str(error).split())}") from error
    models = _mapping({} if read is None else read, "the text", MAX_MODELS)
    return {
        model: {
            name: _amounts(amounts, f"{quoted(model)}.{quoted(name)}")
            for name, amounts in _mapping(templates, quoted(model), MAX_TEMPLATES).items()
        }
        for model, templates in models.items()
    }


def _check_shape(text: str) -> None:
    """Parsers of YAML take quadratic time for deep nesting (100 KB: a minute), and aliases multiply the document."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise TemplateError("aliases are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise TemplateError(f"more than {MAX_DEPTH} nested mappings or lists")


def template_of(templates: Templates, vendor: str, model: str, amounts: Mapping[str, int]) -> str | None:
    """The first template by name of this model that equals the amounts of one GPU; None without one."""
    listed = templates.get(f"{vendor}-{model}", {})
    return next((name for name in sorted(listed) if listed[name] == amounts), None)


def any_template(templates: Templates, amounts: Mapping[str, int]) -> bool:
    """Whether any model has a template with these amounts."""
    return any(listed == amounts for by_name in templates.values() for listed in by_name.values())


def _mapping(read: Any, where: str, limit: int) -> dict[str, Any]:
    if not isinstance(read, dict) or not all(isinstance(key, str) for key in read):
        raise TemplateError(f"{where}: must be a mapping with texts as keys")
    if len(read) > limit:
        raise TemplateError(f"{where}: has {len(read)} entries, at most {limit} are allowed")
    return read


def _amounts(read: Any, where: str) -> dict[str, int]:
    listed = _mapping(read, where, MAX_RESOURCES)
    try:
        return amounts_of({name: Quantity(str(amount)) for name, amount in listed.items()})
    except (QuantityError, ValueError) as error:
        raise TemplateError(f"{where}: {error}") from error
