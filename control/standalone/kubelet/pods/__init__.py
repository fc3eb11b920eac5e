"""The life of one pod: spec, containers, probes, status."""
