"""The QoS strategies (spec 03 §3). Pure: a node view in, settings and evictions out."""
