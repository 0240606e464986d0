"""The optimising compiler, for people who extend it: programs, passes, costs, mapped axes, reports."""

from .._errors import PassFailedWarning as PassFailedWarning
from .._errors import ProgramCheckError as ProgramCheckError
from .axes import MONOIDS as MONOIDS
from .axes import Axis as Axis
from .axes import Mapped as Mapped
from .axes import Monoid as Monoid
from .axes import No as No
from .axes import Reduced as Reduced
from .axes import along as along
from .axes import declare as declare
from .cost import Cost as Cost
from .cost import Machine as Machine
from .cost import machine as machine
from .cost import program_cost as program_cost
from .default import DEFAULT_PASSES as DEFAULT_PASSES
from .exactness import Exactness as Exactness
from .pipeline import Context as Context
from .pipeline import Pass as Pass
from .program import Program as Program
from .report import Decision as Decision
from .report import Report as Report
