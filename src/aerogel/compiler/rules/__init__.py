"""Rules: what to write in place of what, as two ordinary functions. `default` is the set that runs unless told."""

from .driver import Rules as Rules
from .errors import RewriteCycle as RewriteCycle
from .errors import RuleCheckError as RuleCheckError
from .errors import RuleError as RuleError
from .linalg import inverse_times as inverse_times
from .on import PrimitiveRule as PrimitiveRule
from .on import on as on
from .on_loop import LoopView as LoopView
from .on_loop import Reads as Reads
from .on_loop import on_loop as on_loop
from .operand import Operand as Operand
from .rule import Rule as Rule
from .rule import rule as rule
from .ruleset import AnyRule as AnyRule
from .ruleset import RuleSet as RuleSet
from .ruleset import rule_set as rule_set
from .shipped import default as default
from .site import Enclosing as Enclosing
from .site import Site as Site
from .stage import Stage as Stage
