"""Rules: what to write in place of what, as two ordinary functions. `default` is the set that runs unless told."""

from .cumulative import cumlogsumexp_by_rows as cumlogsumexp_by_rows
from .cumulative import cumlogsumexp_in_a_loop as cumlogsumexp_in_a_loop
from .cumulative import cummax_by_rows as cummax_by_rows
from .cumulative import cummin_by_rows as cummin_by_rows
from .cumulative import cumprod_by_rows as cumprod_by_rows
from .cumulative import cumsum_by_rows as cumsum_by_rows
from .driver import Rules as Rules
from .errors import RewriteCycle as RewriteCycle
from .errors import RuleCheckError as RuleCheckError
from .errors import RuleError as RuleError
from .extrema import argmax_by_blocks as argmax_by_blocks
from .extrema import argmin_by_blocks as argmin_by_blocks
from .linalg import inverse_times as inverse_times
from .on import PrimitiveRule as PrimitiveRule
from .on import on as on
from .operand import Operand as Operand
from .rule import Rule as Rule
from .rule import rule as rule
from .ruleset import AnyRule as AnyRule
from .ruleset import RuleSet as RuleSet
from .ruleset import rule_set as rule_set
from .shipped import default as default
from .site import Enclosing as Enclosing
from .site import Site as Site
from .sorting import sort_places as sort_places
from .stage import Stage as Stage
