"""Experiments: what a TOML file may say, the built-in ones, and running them."""
