"""Selectors, variables and expressions that several dashboards use."""

from __future__ import annotations

from scripts.grafana.frame import Panel, Query, Variable

N = '{node=~"$node"}'
"""All series of the chosen nodes."""
OF_POD = 'node=~"$node",pod_namespace=~"$namespace",pod_name=~"$pod"'
P = f"{{{OF_POD}}}"
"""All series of the chosen pods."""
R = "[$__rate_interval]"
BY_CONTAINER = "pod_namespace, pod_name, container_name"
CONTAINER = "{{pod_namespace}}/{{pod_name}} {{container_name}}"
POD = "{{pod_namespace}}/{{pod_name}}"
TOP = 20
CULPRITS = "culprit_kind, culprit_namespace, culprit_pod, culprit"
CULPRIT = "{{culprit_kind}} {{culprit_namespace}} {{culprit_pod}} {{culprit}}"
"""Without separators other than spaces: a culprit that is not a container has neither namespace nor pod."""

NODE = Variable("node", "node", "koordlet_start_time", "Node")
NAMESPACE = Variable("namespace", "pod_namespace", f"koordlet_pod_cpu_usage_cores{N}", "Namespace")
PODS = Variable("pod", "pod_name", 'koordlet_pod_cpu_usage_cores{node=~"$node",pod_namespace=~"$namespace"}', "Pod")


def rate(family: str, selector: str) -> str:
    """Increase per second."""
    return f"rate({family}{selector}{R})"


def sum_by(labels: str, expr: str) -> str:
    """`sum by (labels) (expr)`"""
    return f"sum by ({labels}) ({expr})"


def quantile(q: float, histogram: str, selector: str, by: str = "") -> str:
    """A percentile of a histogram's observations, per group."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {sum_by(labels, rate(f'{histogram}_bucket', selector))})"


def of_node(expr: str) -> str:
    """`expr`, whose series have no node label, for the chosen nodes: joined by scrape target."""
    return f"({expr}) * on (job, instance) group_left (node) (koordlet_start_time{N} > bool 0)"


def heat(title: str, description: str, histogram: str, selector: str) -> Panel:
    """A histogram over time, darker where more observations fell."""
    expr = sum_by("le", f"increase({histogram}_bucket{selector}{R})")
    return Panel(title, description, [Query(expr, "{{le}}", heatmap=True)], kind="heatmap", unit="s")


def percentiles(title: str, description: str, histogram: str, selector: str, by: str, legend: str) -> Panel:
    """Median and 99th percentile per group."""
    return Panel(
        title,
        description,
        [
            Query(quantile(0.99, histogram, selector, by), f"p99 {legend}"),
            Query(quantile(0.5, histogram, selector, by), f"p50 {legend}"),
        ],
        unit="s",
    )


INTERFERENCE_WORDS = {
    "0": ("quiet", "green"),
    "1": ("suspected", "yellow"),
    "2": ("interfered", "red"),
    "3": ("recovering", "orange"),
}
