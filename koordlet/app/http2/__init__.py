"""HTTP/2 as far as gRPC over a unix socket needs it: frames, windows, messages, and a server for unary calls."""
