"""The steps of `normalize`: each takes something away that the same program could be written without."""
