"""The workload auditor (spec 05 §7.4)."""
