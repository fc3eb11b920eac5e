"""koord-descheduler's command line: Koordinator's flags with their defaults (spec 07 §1.1), and a dry run.

Flags of Kubernetes components without a meaning here are accepted, so that manifests need no change.
"""

from __future__ import annotations

from dataclasses import dataclass

from control.component.options import ComponentOptions
from koordlet.app.flags import flag


@dataclass
class DeschedulerOptions(ComponentOptions):
    """The command line flags."""

    config: str = flag("", "DeschedulerConfiguration file; default: no balance or deschedule plugin is enabled")
    dry_run: bool = flag(False, "run one pass, print which pods would move and why, and exit; writes nothing")
    port: int = flag(10251, "port of the HTTP pages; 0: disabled; ignored with --config", minimum=0)
    address: str = flag("0.0.0.0", "IP address of the HTTP pages; ignored with --config")
    leader_elect_resource_name: str = flag("", "name of the lease (koord-descheduler)")
    leader_elect_resource_namespace: str = flag("", "namespace of the lease (koordinator-system)")
    secure_port: int = flag(10258, "port of the HTTPS pages for authorized callers; 0: disabled", minimum=0)
