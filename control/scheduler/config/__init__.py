"""KubeSchedulerConfiguration: reading, defaults, validation, and the plugins at each extension point (spec 05 §2)."""
