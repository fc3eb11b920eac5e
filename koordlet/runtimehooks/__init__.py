"""What pods and containers get by their class (spec 03 §4): strategies over the node's picture that follow pods, and
the hooks by which a runtime asks before it starts one (`hooks`, `calls`; over gRPC `server`, over NRI `nri`).
"""
