"""The HTTP face of the API server: routing, negotiation, handlers, streams. Knows no policy and no disk."""
