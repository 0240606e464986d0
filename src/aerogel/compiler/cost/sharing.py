"""Which kernels XLA's CPU backend shares among threads (jaxlib 0.10.2)."""

# The "cycles" of a kernel, 10 for a byte and 1 for an operation, beside 100,000 for each thread.
SHARED_CYCLES = 200_000
# A kernel that does fewer operations than it moves bytes is shared by the size of what it makes.
SHARED_BYTES = 1 << 18


def is_worked_on_by_several(operations: float, moved: int) -> bool:
    """Whether a kernel is shared for its operations: those of transcendental functions do not count in XLA's rule."""
    return operations > moved and operations + 10 * moved >= SHARED_CYCLES


def is_shared(operations: float, moved: int, made: int) -> bool:
    """Whether a kernel is shared at all, `made` being the bytes of its result, which `moved` holds as well."""
    return made >= SHARED_BYTES if operations <= moved else is_worked_on_by_several(operations, moved)
