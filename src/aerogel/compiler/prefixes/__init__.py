"""Prefixes, as `jax.lax.associative_scan` makes them: a tree of them as a loop."""
