"""What reads as an array, by handing on all operators to one."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Operator = Callable[..., Any]


def _operator(name: str) -> Operator:
    def operate(self: "ArrayLike", *others: Any) -> Any:
        return getattr(self.get(), name)(*(o.get() if isinstance(o, ArrayLike) else o for o in others))

    operate.__name__ = name
    return operate


def _both(name: str) -> tuple[Operator, Operator]:
    return _operator(f"__{name}__"), _operator(f"__r{name}__")


class ArrayLike:
    """What reads as the array that `get` returns: in arithmetic, in comparisons, as an argument of `jax.numpy`.

    Where Python would otherwise find an answer of its own (everything is true; what has items is iterated by index,
    which never ends, since JAX clamps indices), it is the array's.
    """

    __slots__ = ()
    __array_priority__ = 100  # NumPy's arrays leave arithmetic to us

    def get(self) -> Any:
        """The value."""
        raise NotImplementedError

    def __jax_array__(self) -> Any:
        return self.get()

    def __getitem__(self, index: Any) -> Any:
        return self.get()[index]

    def __len__(self) -> int:
        return len(self.get())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.get(), dtype=dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.get().shape

    @property
    def dtype(self) -> Any:
        return self.get().dtype

    @property
    def ndim(self) -> int:
        return self.get().ndim

    @property
    def size(self) -> int:
        return self.get().size

    __add__, __radd__ = _both("add")
    __sub__, __rsub__ = _both("sub")
    __mul__, __rmul__ = _both("mul")
    __truediv__, __rtruediv__ = _both("truediv")
    __floordiv__, __rfloordiv__ = _both("floordiv")
    __mod__, __rmod__ = _both("mod")
    __pow__, __rpow__ = _both("pow")
    __matmul__, __rmatmul__ = _both("matmul")
    __and__, __rand__ = _both("and")
    __or__, __ror__ = _both("or")
    __xor__, __rxor__ = _both("xor")
    __lshift__, __rlshift__ = _both("lshift")
    __rshift__, __rrshift__ = _both("rshift")
    __lt__, __le__ = _operator("__lt__"), _operator("__le__")
    __gt__, __ge__ = _operator("__gt__"), _operator("__ge__")
    __neg__, __pos__ = _operator("__neg__"), _operator("__pos__")
    __abs__, __invert__ = _operator("__abs__"), _operator("__invert__")
    __int__, __float__ = _operator("__int__"), _operator("__float__")
    __complex__, __index__ = _operator("__complex__"), _operator("__index__")
