"""The protocols that carry hook calls: gRPC for the runtime proxy, NRI over ttrpc."""
