"""Equinox's layers: its arguments, attributes and numbers, on Aerogel's own layers."""
