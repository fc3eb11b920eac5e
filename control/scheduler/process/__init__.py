"""The koord-scheduler process: options, composition, HTTP endpoints, metrics, manifests."""
