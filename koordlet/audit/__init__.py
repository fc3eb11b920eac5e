"""The audit log: what koordlet changed or detected, when and why; bounded on disk, with a paged HTTP API.

    auditor.record(0, pod("default", "batch-1"), "EvictPod", f"memory at {used} %", details={"used": used})

Callers take an `Auditor` and need not check whether auditing is enabled: `NullAuditor` discards events. A full disk
raises nothing in callers; lost events are counted (docs/audit.md).
"""

from koordlet.audit.auditor import Auditor, LogAuditor, NullAuditor
from koordlet.audit.events import About, group, node, pod, unknown

__all__ = ["About", "Auditor", "LogAuditor", "NullAuditor", "group", "node", "pod", "unknown"]
