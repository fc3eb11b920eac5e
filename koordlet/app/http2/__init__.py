"""The part of HTTP/2 that gRPC over unix sockets needs: frames, windows, messages, server and client of unary calls."""
