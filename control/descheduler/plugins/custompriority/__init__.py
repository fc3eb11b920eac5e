"""CustomPriority: moves pods from expensive classes of nodes to cheaper ones (spec 07 §7)."""
