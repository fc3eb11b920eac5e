"""The configuration file: DeschedulerConfiguration v1alpha2 (spec 07 §2)."""
