"""One pod on this node: spec, containers, probes, status."""
