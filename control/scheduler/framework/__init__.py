"""The plugin interface: extension points, profiles, statuses, pods at Permit, observers (spec 05 §3.5, §5.1)."""
