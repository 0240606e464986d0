"""Sums of products, in the cheapest order: networks of factors whose dimensions carry labels."""
