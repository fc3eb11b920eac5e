"""NodeNUMAResource: CPUs of their own and NUMA zones for pods (spec 06 §2)."""

from control.scheduler.plugins.nodenumaresource.plugin import NodeNUMAResource

__all__ = ["NodeNUMAResource"]
