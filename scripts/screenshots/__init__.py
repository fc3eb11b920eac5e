"""Previews of the dashboards, from the data of a real run of the demo: `make screenshots`."""
