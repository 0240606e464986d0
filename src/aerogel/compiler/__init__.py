"""The optimising compiler, for people who extend it: programs, passes, reports."""

from .._errors import PassFailedWarning as PassFailedWarning
from .._errors import ProgramCheckError as ProgramCheckError
from .default import DEFAULT_PASSES as DEFAULT_PASSES
from .exactness import Exactness as Exactness
from .pipeline import Context as Context
from .pipeline import Pass as Pass
from .program import Program as Program
from .report import Decision as Decision
from .report import Report as Report
