"""`koordctl status` of an installed cluster: its components. Pure but for `fetch_components`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from control.ctl.cluster.access import opened
from control.ctl.cluster.pods import KOORDLET, MANAGER, SCHEDULER, ServingPod
from control.ctl.errors import CtlError
from koordlet.api.names import KOORDINATOR_NAMESPACE

COMPONENTS = (MANAGER, SCHEDULER, KOORDLET)


class ComponentStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """One component: its pods, those that are ready, and the names and nodes of the others."""

    name: str
    pods: int
    ready_pods: int
    not_ready: list[str] = []
    images: list[str] = []

    @property
    def ready(self) -> bool:
        """Whether it runs, and all its pods are ready."""
        return self.pods > 0 and self.ready_pods == self.pods


async def fetch_components(kubeconfig: str | None, context: str | None) -> list[ComponentStatus]:
    """Raises CtlError, also for a cluster without any pod of the system."""
    async with opened(kubeconfig, context) as cluster:
        pods = await cluster.pods.pods()
        if not pods:
            raise CtlError(
                f"namespace {KOORDINATOR_NAMESPACE} has no pods of the system",
                "docs/install.md describes the installation.",
            )
    return components_of(pods)


def components_of(pods: Sequence[ServingPod]) -> list[ComponentStatus]:
    """The status of manager, scheduler and koordlet, and of other components that have pods."""
    result = []
    for name in dict.fromkeys((*COMPONENTS, *sorted(pod.app for pod in pods))):
        own = [pod for pod in pods if pod.app == name]
        result.append(
            ComponentStatus(
                name,
                len(own),
                sum(pod.ready for pod in own),
                [f"{pod.metadata.name} on {pod.spec.node_name or 'no node'}" for pod in own if not pod.ready],
                sorted({container.image for pod in own for container in pod.spec.containers}),
            )
        )
    return result


def component_table(components: Sequence[ComponentStatus]) -> Table:
    """One row per component."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("COMPONENT", "READY", "NOT READY", "IMAGE"):
        table.add_column(column, no_wrap=True)
    for component in components:
        waiting = ", ".join(component.not_ready) or ("-" if component.pods else "no pods")
        table.add_row(
            component.name,
            f"{component.ready_pods}/{component.pods}",
            waiting,
            ", ".join(component.images) or "-",
            style=None if component.ready else "red",
        )
    return table
