"""Rule sets: immutable values that are composed with + and -."""

import hashlib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..._errors import UsageError
from .errors import RuleError
from .on import PrimitiveRule
from .rule import Rule
from .stage import Stage

AnyRule: TypeAlias = Rule | PrimitiveRule


@dataclass(frozen=True)
class RuleSet:
    """Rules in an order: the first that matches at a site fires there.

    `set + rules` and `set - rules` take a rule, a set or any collection of rules, and make another set. A rule stands
    in a set once; two different rules of one name cannot both stand in it.

    Raises:
        RuleError: a rule has no `after` yet, or the name of another rule.
        UsageError: something is not a rule.

    >>> import aerogel as ag
    >>> ag.rules.default + ag.rules.inverse_times - ag.rules.inverse_times == ag.rules.default
    True
    """

    rules: tuple[AnyRule, ...] = ()

    def __post_init__(self) -> None:
        names: dict[str, AnyRule] = {}
        for rule in self.rules:
            if not isinstance(rule, AnyRule):
                wanted = "rules, which `ag.rule` and `ag.compiler.on` make"
                raise UsageError(argument="rules", got=rule, wanted=wanted, function="optimize")
            if isinstance(rule, Rule) and rule.written is None:
                raise RuleError(
                    rule=rule.name,
                    what="does not say what to write.",
                    where=rule.line,
                    to_fix=f"@{rule.before.__name__}.to on a function of {', '.join(rule.arrays)}",
                )
            if names.setdefault(rule.name, rule) is not rule:
                raise RuleError(
                    rule=rule.name,
                    what="has the name of another rule in this set.",
                    where=rule.line,
                    to_fix="give one of them another: ag.rule(name=...)",
                )
        object.__setattr__(self, "rules", tuple(names.values()))

    def __iter__(self) -> Iterator[AnyRule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __contains__(self, rule: object) -> bool:
        return rule in self.rules

    def __add__(self, more: "AnyRule | Iterable[AnyRule]") -> "RuleSet":
        return RuleSet((*self.rules, *_several(more)))

    def __sub__(self, less: "AnyRule | Iterable[AnyRule]") -> "RuleSet":
        gone = _several(less)
        return RuleSet(tuple(rule for rule in self.rules if rule not in gone))

    def at(self, stage: Stage) -> "RuleSet":
        """The rules of one stage."""
        return RuleSet(tuple(rule for rule in self.rules if rule.stage is stage))

    @property
    def with_derivatives(self) -> "RuleSet":
        """Those that bring a derivative of their own."""
        return RuleSet(tuple(rule for rule in self.rules if isinstance(rule, Rule) and rule.derivative is not None))

    @property
    def fingerprint(self) -> str:
        """A hash of what the rules say: the same in every process, another when the code of a rule changes.

        Values that a rule's functions close over count where they are numbers, strings or functions.
        """
        said = [(r.name, r.exactness, r.stage, r.platforms, *map(_said, r.functions)) for r in self.rules]
        return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def rule_set(rules: Any) -> RuleSet:
    """What users give as `rules`, as a set."""
    return rules if isinstance(rules, RuleSet) else RuleSet(_several(rules))


def _several(rules: Any) -> tuple[AnyRule, ...]:
    several: Any = rules if isinstance(rules, Iterable) and not isinstance(rules, str) else (rules,)
    return tuple(several)


def _said(x: Any) -> Any:
    """What distinguishes a function, or a value that it closes over, from others, as plain data."""
    if isinstance(x, types.FunctionType):
        closed = tuple(cell.cell_contents for cell in x.__closure__ or ())
        named = tuple(sorted((x.__kwdefaults__ or {}).items()))
        return ("function", _said(x.__code__), _said(closed), _said(x.__defaults__), _said(named))
    if isinstance(x, types.CodeType):
        return (x.co_code.hex(), x.co_names, x.co_varnames, tuple(map(_said, x.co_consts)))
    if isinstance(x, bool | int | float | complex | str | bytes | type(None)):
        return repr(x)
    if isinstance(x, tuple):
        return tuple(map(_said, x))
    return type(x).__qualname__
