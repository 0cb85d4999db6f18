"""Exact replacements for operations that `vmap` has no fast form of, and the mode that puts them in."""

from fedloom.lowering.mode import stacked

__all__ = ["stacked"]
