"""Products with a matrix that is joined from blocks and zeros, block by block; and products that are read in blocks.

`block_diag(A, B) @ x` is `concatenate([A @ x[:n], B @ x[n:]])`: neither the zeros are made nor multiplied. Of JAX's
gradient by the blocks, a product that is cut into them, the blocks alone are multiplied.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial, reduce

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..apart import Priced, cost_of
from ..cost import Machine
from ..known.records import Constant, Facts, the
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record
from .network_reader import FLOATS, is_plain

MARGIN = 0.8
LEAST_SECONDS = 1e-6
MOST_FILLED = 0.75  # of a matrix, or of a product
MOST_BLOCKS = 64

Range = tuple[int, int]


@record
class _Block:
    """A value, and where it begins in each of the two dimensions."""

    atom: Atom
    at: tuple[int, int]

    def range(self, dim: int) -> Range:
        return self.at[dim], self.at[dim] + self.atom.aval.shape[dim]


def products_with_blocks(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The products of matrices of blocks and zeros, where products are all that reads these and it is cheaper."""
    found = list[Priced]()
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name in ("concatenate", "pad") and len(eqn.outvars[0].aval.shape) == 2:
            one = _with_blocks(level, facts, machine, place)
            found += [] if one is None else [one]
    return found


def _with_blocks(level: Level, facts: Facts, machine: Machine, place: int) -> Priced | None:
    (matrix,) = level.eqns[place].outvars
    read = _products_of(level, matrix)
    if not read:
        return None
    gone = list[int]()
    blocks = _blocks(level, facts, matrix, (0, 0), gone)
    filled = sum(block.atom.aval.size for block in blocks)
    if not 2 <= len(blocks) <= MOST_BLOCKS or filled > MOST_FILLED * matrix.aval.size:
        return None
    before, after, edits = 0.0, 0.0, list[Edit]()
    made = [level.eqns[k] for k in sorted({*gone}) if level.eqns[k].outvars[0] is matrix or _is_alone(level, k)]
    before += cost_of(level, made, [matrix], machine).seconds or 0.0
    for k, (operand, turned) in read.items():
        builder = Builder(level.eqns[k])
        out = _block_by_block(level.eqns[k], operand, turned, blocks, builder)
        if out is None:
            return None
        before += cost_of(level, [level.eqns[k]], level.eqns[k].outvars, machine).seconds or 0.0
        after += cost_of(level, builder.eqns, [out], machine).seconds or 0.0
        edits.append(Edit(k, frozenset({k}), builder.eqns, {level.eqns[k].outvars[0]: out}, frozenset({k})))
    return _if_it_pays(edits, before, after)


def _if_it_pays(edits: Sequence[Edit], before: float, after: float) -> Priced | None:
    pays = after <= MARGIN * before and before - after >= LEAST_SECONDS
    return Priced(tuple(edits), before, after) if pays else None


def _is_alone(level: Level, place: int) -> bool:
    return len(level.readers(level.eqns[place].outvars[0])) == 1


def _products_of(level: Level, matrix: Var) -> dict[int, tuple[Var, bool]]:
    """The products that read a matrix, or its transpose: as what, and whether turned; none where others read it."""
    found = dict[int, tuple[Var, bool]]()
    for k in level.readers(matrix):
        turned = k >= 0 and level.eqns[k].primitive.name == "transpose"
        var = level.eqns[k].outvars[0] if turned else matrix
        for j in level.readers(var) if turned else [k]:
            if j < 0 or not _is_matrix_product(level.eqns[j], var):
                return {}
            found[j] = var, turned
    return found


def _is_matrix_product(eqn: JaxprEqn, matrix: Var) -> bool:
    """Whether an equation multiplies something else by a matrix, along one of its dimensions."""
    if eqn.primitive.name != "dot_general" or not is_plain(eqn) or str(matrix.aval.dtype) not in FLOATS:
        return False
    (contract, batch), (x, y) = eqn.params["dimension_numbers"], eqn.invars
    return (x is matrix) != (y is matrix) and len(contract[0]) == 1 and not batch[0]


def _blocks(level: Level, facts: Facts, x: Atom, at: tuple[int, int], gone: list[int]) -> list[_Block]:
    """The blocks of a matrix that are no zeros; `gone` takes the places of the equations that join them."""
    zero, made = the(Constant, facts.of(x)), level.maker(x)
    if zero is not None and zero.value == 0:
        return []
    if made is None or not is_var(x) or len(gone) > MOST_BLOCKS:
        return [_Block(x, at)]
    if made.primitive.name == "concatenate":
        gone.append(level.made_by[x])
        found, dim, start = list[_Block](), made.params["dimension"], 0
        for piece in made.invars:
            moved = (at[0] + start, at[1]) if dim == 0 else (at[0], at[1] + start)
            found += _blocks(level, facts, piece, moved, gone)
            start += piece.aval.shape[dim]
        return found
    if made.primitive.name == "pad":
        config, filled = made.params["padding_config"], the(Constant, facts.of(made.invars[1]))
        if filled is not None and filled.value == 0 and all(low >= 0 <= high and not gap for low, high, gap in config):
            gone.append(level.made_by[x])
            (row, _, _), (column, _, _) = config
            return _blocks(level, facts, made.invars[0], (at[0] + int(row), at[1] + int(column)), gone)
    return [_Block(x, at)]


def _block_by_block(
    eqn: JaxprEqn, matrix: Var, turned: bool, blocks: Sequence[_Block], builder: Builder
) -> Atom | None:
    """The product with each block, added up where they share rows, and joined with zeros where none has any."""
    side = 0 if eqn.invars[0] is matrix else 1
    contract, out = eqn.params["dimension_numbers"][0], eqn.outvars[0].aval
    other, along, summed = eqn.invars[1 - side], contract[1 - side][0], contract[side][0]
    summed = 1 - summed if turned else summed  # of the blocks, which are read as they lie
    numbers = (((along,), (summed,)) if side else ((summed,), (along,)), ((), ()))
    params = {**eqn.params, "dimension_numbers": numbers}
    at = len(out.shape) - 1 if side else 0
    by_rows = defaultdict[Range, list[Atom]](list)
    for block in blocks:
        first, last = block.range(summed)
        cut = partial(lax.slice_in_dim, start_index=first, limit_index=last, axis=along)
        (part,) = (other,) if (first, last) == (0, other.aval.shape[along]) else builder.call(cut, other)
        rows = block.range(1 - summed)
        shape = (*out.shape[:at], rows[1] - rows[0], *out.shape[at + 1 :])
        made = _jax.new_var(out.update(shape=shape))
        operands = [part, block.atom] if side else [block.atom, part]
        builder.eqns.append(eqn.replace(invars=operands, outvars=[made], params=params))
        by_rows[rows].append(made)
    pieces, end = list[Atom](), 0
    for (first, last), terms in sorted(by_rows.items()):
        if first < end:
            return None
        pieces += _zeros(builder, out, at, first - end)
        pieces.append(terms[0] if len(terms) == 1 else builder.call(lambda *ys: reduce(lax.add, ys), *terms)[0])
        end = last
    pieces += _zeros(builder, out, at, out.shape[at] - end)
    return pieces[0] if len(pieces) == 1 else builder.call(lambda *ys: lax.concatenate(ys, at), *pieces)[0]


def _zeros(builder: Builder, out: _jax.ShapedArray, at: int, count: int) -> list[Atom]:
    shape = (*out.shape[:at], count, *out.shape[at + 1 :])
    return builder.call(lambda: lax.full(shape, 0, out.dtype)) if count else []


def products_read_in_blocks(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The products of which slices are read that are a part of it, where it is cheaper to multiply these."""
    found = list[Priced]()
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name == "dot_general" and is_plain(eqn) and str(eqn.outvars[0].aval.dtype) in FLOATS:
            one = _in_blocks(level, machine, place)
            found += [] if one is None else [one]
    return found


def _in_blocks(level: Level, machine: Machine, place: int) -> Priced | None:
    eqn = level.eqns[place]
    (product,), (contract, batch) = eqn.outvars, eqn.params["dimension_numbers"]
    if batch[0]:
        return None
    gone = {place}
    cut = _cuts(level, product, gone)
    if not cut or sum(part.var.aval.size for part in cut) > MOST_FILLED * product.aval.size:
        return None
    builder, results = Builder(eqn), dict[Var, Atom]()
    ranks = [len(x.aval.shape) for x in eqn.invars]
    owners = [(side, d) for side in (0, 1) for d in range(ranks[side]) if d not in contract[side]]
    for part in cut:
        operands = list(eqn.invars)
        for (side, d), (first, last) in zip(owners, part.ranges, strict=True):
            if last - first < eqn.invars[side].aval.shape[d]:
                rows = partial(lax.slice_in_dim, start_index=first, limit_index=last, axis=d)
                (operands[side],) = builder.call(rows, operands[side])
        made = _jax.new_var(product.aval.update(shape=tuple(last - first for first, last in part.ranges)))
        builder.eqns.append(eqn.replace(invars=operands, outvars=[made]))
        in_order = part.order == tuple(range(len(part.order)))
        turned = partial(lax.transpose, permutation=part.order)
        results[part.var] = made if in_order else builder.call(turned, made)[0]
    before = cost_of(level, [level.eqns[k] for k in sorted(gone)], list(results), machine).seconds or 0.0
    after = cost_of(level, builder.eqns, list(results.values()), machine).seconds or 0.0
    whole = frozenset(gone)
    return _if_it_pays([Edit(place, whole, builder.eqns, results, whole)], before, after)


@record
class _Part:
    """What is cut out of a product: `ranges` along its dimensions, which come in another `order`."""

    var: Var
    order: tuple[int, ...]
    ranges: tuple[Range, ...]


def _cuts(level: Level, product: Var, gone: set[int]) -> list[_Part]:
    """The parts of a product that are read; none if all of it is. `gone` takes the places of what cuts and turns."""
    found, shape = list[_Part](), product.aval.shape
    waiting = [_Part(product, tuple(range(len(shape))), tuple((0, n) for n in shape))]
    while waiting:
        part = waiting.pop()
        readers = level.readers(part.var)
        inner = [_inner(level.eqns[k], part) if k >= 0 else None for k in readers]
        of_cuts = [one for one in inner if one is not None]
        if readers and len(of_cuts) == len(readers) and len(found) < MOST_BLOCKS:
            waiting += of_cuts
            gone.update(readers)
        elif part.var.aval.size == product.aval.size:
            return []
        else:
            found.append(part)
    return found


def _inner(eqn: JaxprEqn, part: _Part) -> _Part | None:
    """What an equation cuts out of a part, or turns; None if it does anything else."""
    if eqn.primitive.name == "transpose":
        order = tuple(part.order[d] for d in eqn.params["permutation"])
        return _Part(eqn.outvars[0], order, part.ranges)
    cut = _cut(eqn)
    if cut is None or not eqn.outvars[0].aval.size:
        return None
    ranges = list(part.ranges)
    for d, (first, last) in zip(part.order, cut, strict=True):
        start = ranges[d][0]
        ranges[d] = start + first, start + last
    return _Part(eqn.outvars[0], part.order, tuple(ranges))


def _cut(eqn: JaxprEqn) -> tuple[Range, ...] | None:
    """What an equation cuts out of a value, if it does nothing else."""
    shape, params = eqn.invars[0].aval.shape, eqn.params
    if eqn.primitive.name == "slice" and (params["strides"] is None or all(n == 1 for n in params["strides"])):
        return tuple((int(a), int(b)) for a, b in zip(params["start_indices"], params["limit_indices"], strict=True))
    if eqn.primitive.name == "pad" and all(low <= 0 >= high and not gap for low, high, gap in params["padding_config"]):
        return tuple(
            (-int(low), n + int(high)) for (low, high, _), n in zip(params["padding_config"], shape, strict=True)
        )
    return None
