"""How a value reaches those who read it: computed once for several of them, or by each for itself, row by row."""
