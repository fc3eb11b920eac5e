"""Hook servers: registration, dispatch, requests and responses (spec 08 §8-§10)."""
