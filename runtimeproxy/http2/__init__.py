"""An HTTP/2 connection handed through frame by frame, with a few gRPC requests held and rewritten on their way."""
