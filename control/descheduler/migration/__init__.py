"""Moves pods through PodMigrationJobs: arbitration, reservations, evictions (spec 07 §11)."""
