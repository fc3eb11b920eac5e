"""The scheduling cycle of a pod, its binding, and the loop that runs them (spec 05 §3.5)."""
