"""Equations that repeat one another, as a loop."""
