"""What is right: whether a rewritten program is well formed, and whether its numbers are those of the original."""
