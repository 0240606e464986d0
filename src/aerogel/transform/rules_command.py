"""What `aerogel rules` prints: which rules there are, what one says, and whether they do what they claim."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from aerogel._errors import UsageError
from aerogel.compiler import rules as shipped
from aerogel.compiler.rules import AnyRule, PrimitiveRule, Rule, RuleCheckError, rule_set

from .rule_check import check_rule
from .rules import installed

Sources = dict[str, tuple[AnyRule, ...]]


def sources(targets: Sequence[str]) -> Sources:
    """The rules of Aerogel, of installed packages, and of what `targets` name: "module" or "module:name".

    Raises:
        UsageError: a target holds no rules.
    """
    found: Sources = {"aerogel": tuple(_in_module(shipped))}
    found |= {name: tuple(rules) for name, rules in installed().items()}
    for target in targets:
        module, _, name = target.partition(":")
        held = import_module(module)
        rules = tuple(rule_set(getattr(held, name))) if name else tuple(_in_module(held))
        if not rules:
            raise UsageError(argument="--from", got=target, wanted="a module with rules", function="rules")
        found[target] = rules
    return found


def _in_module(module: object) -> Iterator[AnyRule]:
    """The rules that stand in a module by name, and those in sets and lists there; each once."""
    seen: set[int] = set()
    for value in vars(module).values():
        several = value if isinstance(value, Iterable) and not isinstance(value, str | dict) else (value,)
        for rule in several if isinstance(several, tuple | list | shipped.RuleSet) else ():
            if isinstance(rule, Rule | PrimitiveRule) and id(rule) not in seen:
                seen.add(id(rule))
                yield rule


def listed(found: Sources) -> str:
    """A line for each rule: its name, what it promises, where it applies, whence it comes."""
    lines = []
    for source, rules in found.items():
        for rule in rules:
            on = ", ".join(rule.platforms) if rule.platforms else "everywhere"
            default = ", by default" if rule in shipped.default else ""
            lines.append((rule.name, str(rule.exactness), f"{rule.stage}, {on}", f"{source}{default}", rule.reason))
    widths = [max((len(line[k]) for line in lines), default=0) for k in range(4)]
    said = ("  ".join(f"{word:{width}}" for word, width in zip(line, widths, strict=False)) for line in lines)
    return "\n".join(f"{text}  {line[-1]}" for text, line in zip(said, lines, strict=True))


def shown(rule: AnyRule) -> str:
    """The code of a rule, with what it claims."""
    functions = _functions(rule) if isinstance(rule, Rule) else [rule.function]
    head = f"{rule.name}: {rule.exactness}, {rule.stage}. {rule.reason}. ({rule.line})"
    return "\n\n".join([head, *(inspect.getsource(one).rstrip() for one in functions if one is not None)])


def _functions(rule: Rule) -> list[Any]:
    derivative = () if rule.derivative is None else rule.derivative.functions
    return [*rule.spellings, rule.after, rule.condition, *derivative]


def checked(rules: Iterable[AnyRule]) -> Iterator[tuple[AnyRule, str]]:
    """Each rule with what is wrong with it: "" if it does what it claims on its own examples."""
    for rule in rules:
        try:
            check_rule(rule)
        except (RuleCheckError, shipped.RuleError, UsageError) as error:
            yield rule, str(error)
        else:
            yield rule, ""


def named(found: Sources, names: Sequence[str]) -> list[AnyRule]:
    """The rules of these names, or all of them if none is given.

    Raises:
        UsageError: there is no rule of a name.
    """
    every = {rule.name: rule for rules in found.values() for rule in rules}
    unknown = next((name for name in names if name not in every), None)
    if unknown is not None:
        raise UsageError(argument="rule", got=unknown, wanted=sorted(every), function="rules")
    return [every[name] for name in names] if names else list(every.values())
