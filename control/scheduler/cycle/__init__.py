"""One pod's scheduling cycle and its binding, and the loop that runs them (spec 05 §3.5)."""
