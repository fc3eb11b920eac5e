"""What every binary does the same way: flags, gates, logs, health and metrics pages, signals, periodic tasks, time."""
