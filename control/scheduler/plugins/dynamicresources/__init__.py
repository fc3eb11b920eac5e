"""DynamicResources: devices of resource claims."""

from control.scheduler.plugins.dynamicresources.plugin import DynamicResources

__all__ = ["DynamicResources"]
