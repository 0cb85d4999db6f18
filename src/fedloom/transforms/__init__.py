"""Transforms: gradient -> step, the same type on a client (every local step) and on the server (once a round)."""
