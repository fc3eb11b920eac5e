"""koordlet's Prometheus metrics: Koordinator's names and labels, and additional ones (spec 02 §10).

`catalogue` has the tables of families; `registries` produces the scrape output. Gauges are views: at scrape time they
call a provider for the current rows, so that hot paths set nothing and the series of a deleted pod end. Only counters
and histograms keep state.
"""

from koordlet.prometheus.catalogue import CATALOGUE
from koordlet.prometheus.family import EXTERNAL, INTERNAL, Family
from koordlet.prometheus.registries import Groups, Registries, Rows

__all__ = ["CATALOGUE", "EXTERNAL", "INTERNAL", "Family", "Groups", "Registries", "Rows"]
