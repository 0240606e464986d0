"""Sorts whose order nobody needs: sums in any order, and entries of a rank that is searched for."""
