"""The koord-descheduler process: options, composition, main loop, pages, metrics, manifests."""
