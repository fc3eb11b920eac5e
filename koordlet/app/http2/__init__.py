"""The part of HTTP/2 that gRPC over a unix socket needs: frames, windows, messages, server and client for unary calls."""
