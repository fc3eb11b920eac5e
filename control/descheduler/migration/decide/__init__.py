"""The decisions of the migration controller: pure functions of objects and time (spec 07 §4, §11)."""
