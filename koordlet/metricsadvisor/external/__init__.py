"""External advisors: figures of containers from third-party exporters in Prometheus format (spec 02 §11.2 D3)."""
