"""Work on short rows that stays where XLA makes it: beside products and convolutions."""

from collections.abc import Sequence, Set

import jax.numpy as jnp

from aerogel._jax import Var

from ..kernels.long_rows import Dims, is_short

# Rows of whole vectors gain up to 1.5 where much is done to an entry, and nothing otherwise. Beside convolutions, whose
# results lie in another order, they lose: 1.06 to 1.23 for rows of 16, 24, 32, 40 and 48.
VECTOR = 8


def refusal_beside(near: Set[str], made_of: Set[str], shape: Dims, outs: Sequence[Var]) -> str | None:
    """Why work stays as it is beside operations of these names, to which it hands `outs`; some make what it reads.

    Of 3,200 and 20,000 rows of 20 to 40 entries, `sum((tanh(x @ w) @ v - y)**2)`: apart it took 1.1 to 1.5 of plain
    JAX's time, and 0.8 and 5.1 MB in place of none; with its gradient 1.0 to 1.25, and 1.8 times the memory.
    `tanh(x @ w)` alone 0.84 to 1.0, and 3.2 MB in place of none.
    """
    halves = any(jnp.issubdtype(v.aval.dtype, jnp.floating) and v.aval.dtype.itemsize == 2 for v in outs)
    if halves and "dot_general" in near:
        return "XLA makes it of float32 for the product beside it, and converts nothing"
    if "conv_general_dilated" in near and shape[-1] % VECTOR == 0:
        return "its rows are whole vectors, and beside a convolution XLA's code for them is better"
    if "dot_general" in made_of and is_short(shape):
        return "XLA works on the product where it makes it, and stores nothing besides"
    return None
