"""The rules that run unless a user gives others: none yet. Each comes with a measurement that it pays."""

from .ruleset import RuleSet

default = RuleSet()
