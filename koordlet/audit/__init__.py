"""What koordlet changed or found, when, and why: a bounded log on disk, and an HTTP API that pages through it.

    auditor.record(0, pod("default", "batch-1"), "EvictPod", f"memory at {used} %", details={"used": used})

Callers take an `Auditor` and never ask whether auditing is on: `NullAuditor` has the same face. Nothing here raises
into a caller because a disk is full; what could not be kept is counted (docs/audit.md).
"""

from koordlet.audit.auditor import Auditor, LogAuditor, NullAuditor
from koordlet.audit.events import About, group, node, pod, unknown

__all__ = ["About", "Auditor", "LogAuditor", "NullAuditor", "group", "node", "pod", "unknown"]
