"""The plugin interface: extension points, profiles, statuses, timing (spec 05 §3.5, §5.1)."""
