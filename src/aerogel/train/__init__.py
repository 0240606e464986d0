"""Training: optimisers, loops, metrics, checkpoints and logs. A kit, no framework: each part works alone."""

from ._checkpoints import Checkpoint as Checkpoint
from ._checkpoints import Checkpoints as Checkpoints
from ._early_stopping import EarlyStopping as EarlyStopping
from ._ema import EMA as EMA
from ._errors import MissingExtraError as MissingExtraError
from ._logs import AbstractLog as AbstractLog
from ._logs import CSVLog as CSVLog
from ._logs import TensorBoardLog as TensorBoardLog
from ._loop import Loop as Loop
from ._loop import loop as loop
from ._loss_scale import LossScale as LossScale
from ._metrics import AbstractMetric as AbstractMetric
from ._metrics import Accuracy as Accuracy
from ._metrics import Mean as Mean
from ._metrics import RunningMean as RunningMean
from ._optimizer import Optimizer as Optimizer
from ._prefetch import Prefetched as Prefetched
from ._prefetch import prefetch as prefetch
from ._progress import Progress as Progress
