"""Jacobians that are made row by row and then multiplied: never made."""
