"""A whole jaxpr along an axis, equation by equation: for calls, branches and loop bodies.

Values are of two kinds. Those that depend on a mapped input *vary*: they exist as blocks only. All others are
*invariant*: they exist whole, and a block of one is made where an equation asks for it: by the backward question to
the equation that made it (so a broadcast makes only its block), else by cutting.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._jax import ClosedJaxpr, JaxprEqn, Literal, Var
from ..record import record
from .answer import Axis, Mapped, No
from .blocks import take_block
from .rebind import bind
from .table import along, along_output

# A value in one form: whole (None), or its blocks along an axis at one place.
Form = tuple[Any, Axis | None]


def jaxpr_along(
    program: ClosedJaxpr,
    ins: Mapping[int, Axis],
    length: int,
    *,
    outs: Mapping[int, Axis] | None = None,
    whole: Collection[int] = (),
    after_differentiation: bool = False,
) -> Mapped | No:
    """A program as one equation along an axis that stands in some of its inputs.

    Args:
        program: the nested program; it may have constants.
        ins: for some inputs, by position, where the axis stands.
        length: the length of the axis.
        outs: for some outputs, where the axis is wanted: an output that does not vary is then given as blocks too.
        whole: positions of inputs that the answer must not turn into blocks.
        after_differentiation: whether calls with derivative rules of their own may be looked into.
    """

    def attempt(ins: Mapping[int, Axis]) -> tuple[Mapped, dict[int, Axis]] | No:
        walk = _Walk(program, length, after_differentiation)
        refusal = walk.forward(ins)
        if refusal is not None:
            return refusal
        wanted = walk.wanted_outs(outs or {})
        return wanted if isinstance(wanted, No) else walk.plan(ins, wanted, whole)

    found = attempt(ins)
    if isinstance(found, No):
        return found
    # An input that is needed as blocks and whole would be cut inside, after all work on the whole was done. If the
    # program can do with blocks of it, that is the better answer.
    known, tried = dict(ins), set[int]()
    while untried := {i: axis for i, axis in found[1].items() if i not in tried}:
        position = min(untried)
        tried.add(position)
        more = attempt({**known, position: untried[position]})
        if not isinstance(more, No):
            known[position] = untried[position]
            found = more
    return found[0]


@dataclass
class _Walk:
    program: ClosedJaxpr
    length: int
    after_differentiation: bool
    varying: dict[Var, Axis] = field(default_factory=dict)
    made_by: dict[Var, int] = field(default_factory=dict)
    answers: dict[int, Mapped] = field(default_factory=dict)

    def forward(self, ins: Mapping[int, Axis]) -> No | None:
        """Follows the axis from the inputs to everything that varies."""
        jaxpr = self.program.jaxpr
        if jaxpr.effects:
            return No("a nested program has effects")
        self.varying = {jaxpr.invars[position]: axis for position, axis in ins.items()}
        for k, eqn in enumerate(jaxpr.eqns):
            self.made_by.update(dict.fromkeys(eqn.outvars, k))
            known = {i: self.varying[v] for i, v in enumerate(eqn.invars) if isinstance(v, Var) and v in self.varying}
            if not known:
                continue
            answer = along(eqn, known, self.length, after_differentiation=self.after_differentiation)
            if isinstance(answer, No):
                return answer
            if not isinstance(answer, Mapped):
                return No(f"`{eqn.primitive.name}` inside a call reduces over the axis")
            assert all(answer.ins[i] == axis for i, axis in known.items()), f"{answer} forgot a known axis of {known}"
            self.answers[k] = answer
            self.varying.update({v: a for v, a in zip(eqn.outvars, answer.outs, strict=True) if a is not None})
        return None

    def wanted_outs(self, outs: Mapping[int, Axis]) -> list[Form] | No:
        """The form that each output is given in."""
        forms: list[Form] = []
        for position, atom in enumerate(self.program.jaxpr.outvars):
            axis = self.varying.get(atom) if isinstance(atom, Var) else None
            wanted = outs.get(position, axis)
            if axis is not None and wanted != axis:
                return No("an output of a nested program has the axis in another place")
            forms.append((atom, wanted))
        return forms

    def plan(
        self, ins: Mapping[int, Axis], wanted: Sequence[Form], whole: Collection[int]
    ) -> tuple[Mapped, dict[int, Axis]]:
        """What has to be computed for the wanted forms, from outputs to inputs; and inputs that are needed twice."""
        jaxpr = self.program.jaxpr
        inputs = set(jaxpr.invars) | set(jaxpr.constvars)
        forms: set[Form] = set()
        steps: dict[tuple[int, int], _Step] = {}
        todo = list(wanted)
        while todo:
            form = todo.pop()
            atom, axis = form
            if isinstance(atom, Literal) or form in forms:
                continue
            forms.add(form)
            if atom in inputs:
                continue
            step = self.step(atom, axis)
            if step is None:  # nothing better than cutting
                todo.append((atom, None))
            elif (step.position, id(step.answer)) not in steps:
                steps[step.position, id(step.answer)] = step
                todo.extend(zip(step.eqn.invars, step.ins, strict=True))
        needed: dict[Any, list[Axis | None]] = {}
        for var, axis in forms:
            needed.setdefault(var, []).append(axis)
        places = tuple(
            ins[position] if position in ins else _place(needed.get(v, []), position in whole)
            for position, v in enumerate(jaxpr.invars)
        )
        order = sorted(steps.values(), key=lambda step: step.position)
        made = set(zip(jaxpr.invars, places, strict=True))
        made.update(form for step in order for form in zip(step.eqn.outvars, step.outs, strict=True))
        cuts = any(axis is not None and (v, axis) not in made for v, axis in forms)
        uses_start = cuts or any(step.answer is not None and step.answer.uses_start for step in order)
        out_axes = tuple(axis for _, axis in wanted)
        answer = Mapped(places, out_axes, _Run(self.program, self.length, places, order, wanted), uses_start)
        return answer, {
            position: axis
            for position, v in enumerate(jaxpr.invars)
            if position not in ins and position not in whole and len(needed.get(v, [])) > 1
            for axis in needed[v]
            if axis is not None
        }

    def step(self, var: Var, axis: Axis | None) -> "_Step | None":
        """The step that makes one form of an equation's output; None if a block has to be cut from the whole."""
        k = self.made_by[var]
        eqn = self.program.jaxpr.eqns[k]
        if k in self.answers:
            return _Step(k, eqn, self.answers[k])
        if axis is None:
            return _Step(k, eqn, None)
        back = along_output(eqn, {eqn.outvars.index(var): axis}, self.length)
        return _Step(k, eqn, back) if isinstance(back, Mapped) else None


def _place(needed: Sequence[Axis | None], whole: bool) -> Axis | None:
    """How an invariant input is taken: as blocks, if that is the one form in which it is needed."""
    return needed[0] if len(needed) == 1 and not whole else None


@record
class _Step:
    """One equation to run: on blocks, or (without an answer) whole."""

    position: int
    eqn: JaxprEqn
    answer: Mapped | None

    @property
    def ins(self) -> tuple[Axis | None, ...]:
        return (None,) * len(self.eqn.invars) if self.answer is None else self.answer.ins

    @property
    def outs(self) -> tuple[Axis | None, ...]:
        return (None,) * len(self.eqn.outvars) if self.answer is None else self.answer.outs


@record
class _Run:
    """The block function of a planned program."""

    program: ClosedJaxpr
    length: int
    places: tuple[Axis | None, ...]
    steps: Sequence[_Step]
    wanted: Sequence[Form]

    def __call__(self, start: Any, size: int, *inputs: Any) -> list[Any]:
        jaxpr = self.program.jaxpr
        env: dict[Form, Any] = {(v, None): x for v, x in zip(jaxpr.constvars, self.program.consts, strict=True)}
        env |= {(v, a): x for v, a, x in zip(jaxpr.invars, self.places, inputs, strict=True)}
        read = self.reader(env, start, size)
        for step in self.steps:
            values = [read(atom, axis) for atom, axis in zip(step.eqn.invars, step.ins, strict=True)]
            if step.answer is None:
                outs = bind(step.eqn, values, step.eqn.params)
            else:
                outs = step.answer.block(start, size, *values)
            env.update(zip(zip(step.eqn.outvars, step.outs, strict=True), outs, strict=True))
        return [read(*form) for form in self.wanted]

    def reader(self, env: dict[Form, Any], start: Any, size: int) -> Callable[[Any, Axis | None], Any]:
        def read(atom: Any, axis: Axis | None) -> Any:
            if isinstance(atom, Literal):
                return atom.val if axis is None else take_block(atom.val, axis, self.length, start, size)
            if (atom, axis) not in env:
                assert axis is not None, f"{atom} varies along the axis and was asked for whole"
                env[atom, axis] = take_block(env[atom, None], axis, self.length, start, size)
            return env[atom, axis]

        return read
