"""Which shared GPUs need a template, and the templates of the ConfigMap (spec 06 §3.5.4). One per profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from control.devices.allocate import NO_TEMPLATE
from control.devices.needs import DeviceNeed
from control.devices.room import DeviceHolding, DeviceTraits
from control.devices.search import DevicesLacking
from control.devices.templates import (
    DATA_KEY,
    NO_TEMPLATES,
    TemplateError,
    Templates,
    any_template,
    read_templates,
    template_of,
)
from control.scheduler.config.args import GPUSharedResourceTemplatesConfig
from control.scheduler.framework.handle import Handle
from koordlet.api.core import ConfigMap
from koordlet.api.crs.device import GPU


class SharingTemplates:
    """`refused(object, reason)`: a malformed ConfigMap, whose former content stays. `changed()`: the templates did."""

    def __init__(
        self,
        config: GPUSharedResourceTemplatesConfig,
        handle: Handle,
        refused: Callable[[str, str], object],
        changed: Callable[[], object],
    ) -> None:
        self._resources = frozenset(config.matched_resources)
        self._key = f"{config.config_map_namespace}/{config.config_map_name}"
        self._refused = refused
        self._changed = changed
        self._templates: Templates = NO_TEMPLATES
        if handle.objects is not None and self._resources:
            handle.objects.informer(ConfigMap).add_handler(self.seen, lambda _, new: self.seen(new), self.gone)

    def seen(self, config: ConfigMap) -> None:
        if config.metadata.key != self._key:
            return
        try:
            templates = read_templates(config.data.get(DATA_KEY, ""))
        except TemplateError as error:
            self._refused(f"ConfigMap {self._key}", f"{DATA_KEY}: {error}")
            return
        self._put(templates)

    def gone(self, config: ConfigMap) -> None:
        if config.metadata.key == self._key:
            self._put(NO_TEMPLATES)

    def _put(self, templates: Templates) -> None:
        if templates != self._templates:
            self._templates = templates
            self._changed()

    def needed(self, need: DeviceNeed) -> bool:
        """Whether the pod gets only what a template describes."""
        gpu = need.gpu
        return gpu is not None and gpu.shared and not self._resources.isdisjoint(gpu.amounts)

    def hopeless(self, need: DeviceNeed) -> bool:
        """Whether no model has a template for the pod."""
        gpu = need.gpu
        return gpu is not None and self.needed(need) and not any_template(self._templates, gpu.amounts)

    def template(self, need: DeviceNeed, traits: DeviceTraits) -> str:
        """The template for a pod on a node; empty if it needs none. Raises DevicesLacking."""
        gpu = need.gpu
        if gpu is None or not self.needed(need):
            return ""
        name = template_of(self._templates, traits.vendor, traits.model, gpu.amounts)
        if name is None:
            raise DevicesLacking(NO_TEMPLATE, final=True)
        return name


def with_template(holding: DeviceHolding, template: str) -> DeviceHolding:
    """The holding, in which every GPU names the template."""
    if not template:
        return holding
    return {**holding, GPU: tuple(replace(device, template=template) for device in holding.get(GPU, ()))}
