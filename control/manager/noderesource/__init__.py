"""What a node lends to batch and mid pods, and what else the manager writes on Node and NodeResourceTopology.

`units` .. `mid` are pure: facts of nodes in, columns of amounts out (`docs/noderesource.md`). `controller` alone talks
to the API server.
"""
