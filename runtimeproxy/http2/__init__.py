"""Forwards an HTTP/2 connection frame by frame, and holds and rewrites selected gRPC requests."""
