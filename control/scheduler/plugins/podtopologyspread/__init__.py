"""PodTopologySpread: spreads matching pods evenly over the values of node labels (spec 05 §4)."""

from control.scheduler.plugins.podtopologyspread.plugin import PodTopologySpread

__all__ = ["PodTopologySpread"]
