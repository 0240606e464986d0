"""Windows of arrays, and sums over them, made of slices."""
