"""HTTP/2 as far as gRPC over a unix socket needs it: frames, windows, messages, server and client of unary calls."""
