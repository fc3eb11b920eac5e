"""`make demo`: a live co-location node on this machine, shown step by step and checked against the kernel."""
