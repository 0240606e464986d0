"""Rules: what to write in place of what. `default` is the set that runs unless told.

What comes with Aerogel stands here by name. `use` puts another set in the place of `default`, `installed` finds what
other packages bring.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.compiler.rules import *  # noqa: F403
from aerogel.compiler.rules import AnyRule, RuleError, RuleSet, rule_set

from .optimize import in_use
from .rule_check import check_rule

_jax.exclude_from_tracebacks(__file__)

GROUP = "aerogel.rules"
_known_good: set[str] = set()


@contextmanager
def use(rules: "AnyRule | Iterable[AnyRule]", *, unchecked: bool = False) -> Generator[RuleSet]:
    """Context in which these rules apply wherever none are given by `rules=`: to the code of others, say.

    Inside, functions are traced anew; what was compiled outside stays, and is taken again behind it. Rules that do not
    come with Aerogel are checked first, once in a process, by `ag.check_rule` on their own examples: a rule that does
    not do what it claims is not put to work behind anybody's back.

    Args:
        rules: a rule, a set or a collection. `ag.rules.default + mine` adds to what runs otherwise.
        unchecked: whether to leave the check out.

    Raises:
        RuleCheckError: a rule fails its claim.
        UsageError: a rule of one primitive has no examples to check it on (`rule.examples`).

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> f = ag.jit(lambda A, b: jnp.linalg.inv(A) @ b)
    >>> with ag.rules.use(ag.rules.inverse_times):
    ...     print(ag.explain(f)(jnp.eye(2), jnp.ones(2)).fired[0].rule)
    inverse-times
    """
    chosen = rule_set(rules)
    if not unchecked:
        for rule in chosen:
            _check_once(rule)
    with _jax.rules_in_use(chosen):
        yield chosen


def _check_once(rule: AnyRule) -> None:
    said = RuleSet((rule,)).fingerprint
    if rule.is_shipped or said in _known_good:  # those are checked in Aerogel's own tests
        return
    check_rule(rule)
    _known_good.add(said)


def installed() -> dict[str, RuleSet]:
    """The rules that installed packages offer, by the names under which they do.

    A package offers a rule, a set or a list by an entry point of the group `aerogel.rules`. To install one changes no
    program: `with ag.rules.use(ag.rules.default + ag.rules.installed()["its-name"])` does.

    Raises:
        RuleError: an entry point leads nowhere, or to something else than rules.

    >>> import aerogel as ag
    >>> sorted(ag.rules.installed())
    []
    """
    return {point.name: _loaded(point) for point in sorted(entry_points(group=GROUP))}


def _loaded(point: EntryPoint) -> RuleSet:
    try:
        return rule_set(point.load())
    except (ImportError, AttributeError, UsageError) as error:
        package = point.dist.name if point.dist is not None else "some package"
        raise RuleError(
            rule=point.name,
            noun="entry point",
            what=f"of {package} gives no rules.",
            where=f"{point.name} = {point.value!r}",
            got=str(error).splitlines()[0],
            wanted="a rule, a set of rules or a list of them",
            to_fix=f'mend it in [project.entry-points."{GROUP}"] of {package}, or uninstall that',
        ) from error


__all__ = ["in_use", "installed", "use"]  # and what the rules are called: see `aerogel.compiler.rules`
