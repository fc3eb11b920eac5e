"""koordlet's Prometheus surface: Koordinator's names and labels, and ours (spec 02 §10).

`catalogue.py` is the table of families; `registries.py` turns the table into scrape output. Gauges are views: at scrape
time they ask their provider for the rows that exist now, so nothing is set on the hot path, and the series of a
vanished pod vanish with it. Only counters and histograms keep state.
"""

from koordlet.prometheus.catalogue import CATALOGUE, EXTERNAL, INTERNAL, Family
from koordlet.prometheus.registries import Groups, Registries, Rows

__all__ = ["CATALOGUE", "EXTERNAL", "INTERNAL", "Family", "Groups", "Registries", "Rows"]
