"""KubeSchedulerConfiguration: reading, defaults, checks, and which plugin runs at which point (spec 05 §2)."""
