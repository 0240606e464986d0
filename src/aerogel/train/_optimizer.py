"""`Optimizer`: a transformation of gradients (Optax's), its state, and what of a model it trains."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.module import Where, combine, partition, trainable
from aerogel.module._paths import show_path
from aerogel.module._select import check_where
from aerogel.transform import GradientError
from aerogel.transform._static import is_static

from ._gradient import accumulated, gradient, wide
from ._loss_scale import LossScale

_jax.exclude_from_tracebacks(__file__)

M = TypeVar("M")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Optimizer:
    """An optimiser of Optax's with its state, as one tree: it goes through `jit` and into files as models do.

    It trains the inexact arrays of a model that are neither frozen nor variables, and holds state for these alone; a
    tied array is one leaf and has one state. Models may be any pytrees: those of Equinox, dicts of arrays.

    Attributes:
        transform: what Optax calls a gradient transformation: `optax.adam(1e-3)`, or anything with its `init` and
            `update`.
        wrt: which parts of the model are trained, as for `ag.at`; all by default.
        loss_scale: for gradients in float16. Steps whose gradients are not finite are then skipped.
        state: the transformation's state; None before `init`.
        paths: the trained arrays, by path. Found by `init`.

    >>> import jax, jax.numpy as jnp, optax, aerogel as ag
    >>> model = ag.freeze(ag.nn.Linear(3, 1, key=jax.random.key(0)), "bias")
    >>> optimizer = ag.Optimizer(optax.adam(1e-2)).init(model)
    >>> optimizer.paths
    ('weight',)
    >>> @ag.jit(donate="state")
    ... def step(model, optimizer, x):
    ...     loss, grads = ag.value_and_grad(lambda model: jnp.square(model(x) - 1).mean())(model)
    ...     model, optimizer = optimizer.update(model, grads)
    ...     return model, optimizer, loss
    >>> losses = []
    >>> for _ in range(3):
    ...     model, optimizer, loss = step(model, optimizer, jnp.ones((8, 3)))
    ...     losses.append(float(loss))
    >>> losses[0] > losses[1] > losses[2]
    True
    """

    transform: Any = field(metadata={"static": True})
    wrt: Where | None = field(default=None, metadata={"static": True})
    loss_scale: LossScale | None = None
    state: Any = None
    paths: tuple[str, ...] = field(default=(), metadata={"static": True})

    def init(self, model: Any) -> "Optimizer":
        """The optimiser at its beginning, for `model`.

        Raises:
            UsageError: the model has nothing to be trained, `transform` is no transformation, `wrt` means no parts, or
                `loss_scale` is no `LossScale`.
            PathError: `wrt` fits nothing in it.
        """
        if not (callable(getattr(self.transform, "init", None)) and callable(getattr(self.transform, "update", None))):
            raise UsageError(
                argument="transform",
                got=self.transform,
                wanted="what has `init` and `update`: optax.adam(1e-3)",
                function="Optimizer",
            )
        if not isinstance(self.loss_scale, LossScale | None):
            raise UsageError(
                argument="loss_scale",
                got=self.loss_scale,
                wanted="an ag.LossScale, or None",
                function="Optimizer",
                to_fix="ag.Optimizer(tx, loss_scale=ag.LossScale())",
            )
        check_where(
            self.wrt, "wrt", "choose parts, wrt='layers', or none; the model goes to `init`: Optimizer(tx).init(model)"
        )
        params = self._params(model)
        paths = _paths(params)
        if not paths:
            raise UsageError(
                argument="model",
                got=model,
                wanted="a model with floating-point arrays that are not frozen",
                function="Optimizer.init",
                to_fix="ag.unfreeze what is to be trained, or choose other parts with `wrt`",
            )
        return _beside(params, replace(self, state=self.transform.init(params), paths=paths))

    def update(self, model: M, grads: Any, **extra: Any) -> tuple[M, "Optimizer"]:
        """The model after one step along `grads`, and the next optimiser.

        With a loss scale, `grads` are those of the loss times `loss_scale.scale`. If one of them is not finite, the
        model is the one that was given, and only the scale changes.

        Args:
            model: the model.
            grads: what `ag.grad` or `jax.grad` returned for it.
            extra: what else the transformation's `update` takes: `value=loss` for `optax.contrib.reduce_on_plateau`.

        Raises:
            UsageError: `init` was not called, or with a model in which other parts are trained; `grads` is no tree
                like the model.
            GradientError: an array that is trained has no gradient, or one of another shape.
        """
        return self._updated(self._started_params(model), model, grads, model, extra)

    def step(
        self, loss: Callable[..., Any], *, has_aux: bool = False, microbatches: int = 1
    ) -> Callable[..., tuple[Any, Any, "Optimizer"]]:
        """A function of a model and a batch that returns the loss, the model after one step, and the next optimiser.

        It calls `loss(model, batch, ...)` as by `ag.stateful`, so that updates of variables stay in the model, and
        takes its gradient. It is not compiled: call it in a function that is, or in one for `ag.loop`.

        Args:
            loss: a function of a model, and of what else the step is called with, that returns a real number. With
                microbatches it must be a mean over the batch.
            has_aux: whether it returns a pair of one and anything at all; then the step returns the pair.
            microbatches: into how many parts the batch, the argument after the model, is cut along the leading axis
                of its arrays. They are done one after the other, and the mean of their gradients is taken: memory for
                one part, and the result of the whole. Typed keys differ from part to part; other arguments do not.
                What comes beside the loss is stacked.

        Raises:
            UsageError: `microbatches` is no number from 1 on. At a call: the batch cannot be cut so, or is not given by
                position; `loss` returns no pair, and `has_aux` says so; see also `update`.

        >>> import jax, jax.numpy as jnp, optax, aerogel as ag
        >>> model = {"w": jnp.zeros(2)}
        >>> optimizer = ag.Optimizer(optax.sgd(0.25)).init(model)
        >>> step = optimizer.step(lambda model, x: jnp.square(x @ model["w"] - 1).mean(), microbatches=2)
        >>> loss, model, optimizer = step(model, jnp.eye(2))
        >>> print(loss, model["w"])
        1.0 [0.25 0.25]
        """
        if not isinstance(microbatches, int) or microbatches < 1:
            wanted = "a whole number, one or more"
            raise UsageError(argument="microbatches", got=microbatches, wanted=wanted, function="Optimizer.step")

        def run(model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Optimizer]:
            params = self._started_params(model)
            given = (None if self.loss_scale is None else self.loss_scale.scale, params, model, args, kwargs)
            if microbatches == 1:
                out, new, grads = gradient(loss, has_aux, *given)
            else:
                out, new, grads = accumulated(loss, has_aux, microbatches, *given)
            extra = {"value": out[0] if has_aux else out} if _takes_value(self.transform) else {}
            # A step that is skipped keeps what a batch with infinities in it did to statistics out of the model, too.
            return out, *self._updated(params, new, grads, model, extra)

        return run

    def _started_params(self, model: Any) -> Any:
        """The model with None for all that is not trained, for an optimiser with a state.

        Raises:
            UsageError: `init` was not called.
        """
        if not self.paths:
            raise UsageError(
                argument="state",
                got=self.state,
                wanted="what `init` returns with it, for the model",
                function="Optimizer.update",
                to_fix="optimizer = optimizer.init(model), once, before the first step",
            )
        return self._params(model)

    def _params(self, model: Any) -> Any:
        """The model with None for all that is not trained."""
        return partition(partition(model, self.wrt)[0], trainable)[0]

    def _updated(self, params: Any, model: Any, grads: Any, before: Any, extra: Any) -> tuple[Any, "Optimizer"]:
        """`model` with other parameters, or `before` if the gradients are not finite."""
        self._check(params)
        along = _along(params, grads)
        scaling = self.loss_scale
        if scaling is None:
            return self._moved(params, model, along, extra)
        along = jax.tree.map(lambda g: wide(g) / scaling.scale, along)
        is_finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(along)]).all()
        along = jax.tree.map(lambda g, p: g.astype(p.dtype), along, params)
        model, after = self._moved(params, model, along, extra)
        model, state = _where(is_finite, (model, after.state), (before, self.state))
        return model, replace(after, state=state, loss_scale=scaling.adjusted(is_finite))

    def _moved(self, params: Any, model: Any, along: Any, extra: Any) -> tuple[Any, "Optimizer"]:
        # Else the loop that goes back through a stack of layers would update their moments. It reads the old ones and
        # writes the new ones in one step, so that these cannot take the memory of those: two copies more, not one.
        along, params = jax.lax.optimization_barrier((along, params))
        try:
            updates, state = self.transform.update(along, self.state, params, **extra)
            _check_shapes(updates, params)
        except (TypeError, ValueError):  # one gradient for each example is right for some transformations
            _check_shapes(along, params)
            self._check_state(params)
            raise
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        return combine(params, model), replace(self, state=state)

    def _check(self, params: Any) -> None:
        paths = _paths(params)
        if paths == self.paths:
            return
        different = sorted(set(paths) ^ set(self.paths))
        raise UsageError(
            argument="model",
            got=", ".join(different[:5]),
            wanted="the model for which `init` was called, with the same arrays trained",
            function="Optimizer.update",
            to_fix="optimizer = optimizer.init(model); also after freezing and unfreezing",
        )

    def _check_state(self, params: Any) -> None:
        """Whether the state is one for parameters of this structure."""
        wanted = jax.tree.structure(jax.eval_shape(self.transform.init, params))
        if jax.tree.structure(self.state) != wanted:
            raise UsageError(
                argument="model",
                got="a model whose layers have other sizes or settings",
                wanted="the model for which `init` was called",
                function="Optimizer.update",
                to_fix="optimizer = optimizer.init(model), for this model",
            )


def _beside(params: Any, optimizer: Optimizer) -> Optimizer:
    """The optimiser, with what is new in it, such as the number of steps, on the one mesh of the parameters.

    That is where a step on the mesh leaves it: else the second step would be compiled anew.
    """
    meshes = {_mesh(x) for x in jax.tree.leaves(params)}
    if len(meshes) != 1 or None in meshes:
        return optimizer
    everywhere = NamedSharding(meshes.pop(), PartitionSpec())
    return jax.tree.map(lambda x: jax.device_put(x, everywhere) if _is_anywhere(x) else x, optimizer)


def _mesh(x: Any) -> Any:
    placed = x.sharding if isinstance(x, jax.Array) and not _jax.is_traced(x) else None
    return placed.mesh if isinstance(placed, NamedSharding) else None


def _is_anywhere(x: Any) -> bool:
    return isinstance(x, jax.Array) and not _jax.is_traced(x) and not x.committed


def _paths(params: Any) -> tuple[str, ...]:
    return tuple(show_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))


def _along(params: Any, grads: Any) -> Any:
    """The gradients of the parameters, without others.

    Raises:
        UsageError: it is no tree like that of the parameters.
        GradientError: there is none for one of them.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_none)
    try:
        given = structure.flatten_up_to(grads)
    except ValueError as error:
        raise UsageError(
            argument="grads",
            got=grads,
            wanted="a tree like the model: what ag.grad(loss)(model) returned",
            function="Optimizer.update",
            to_fix="loss, grads = ag.value_and_grad(...)(model); optimizer.update(model, grads)",
        ) from error
    for (path, param), grad in zip(flat, given, strict=True):
        if param is None:
            continue
        if grad is None:
            raise GradientError(
                what="an array that the optimiser trains has no gradient.",
                place=show_path(path, "grads"),
                to_fix="differentiate by it too, or train less: ag.Optimizer(..., wrt=...)",
            )
    return structure.unflatten([None if p is None else g for (_, p), g in zip(flat, given, strict=True)])


def _check_shapes(grads: Any, params: Any) -> None:
    """Whether what moves the parameters has their shapes.

    Raises:
        GradientError: one of them has another.
    """
    for (path, param), grad in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(grads), strict=True):
        if jnp.shape(grad) != param.shape:
            raise GradientError(
                what="a gradient has another shape than its array.",
                place=show_path(path, "grads"),
                got=f"shape {jnp.shape(grad)}",
                wanted=f"shape {param.shape}",
                to_fix="take the gradient of the model that is updated; add up what a vmap made over its axis",
            )


def _is_none(x: Any) -> bool:
    return x is None


def _where(condition: Any, one: Any, other: Any) -> Any:
    """The leaves of one tree or of the other; what is no array is the same in both."""
    return jax.tree.map(lambda a, b: a if is_static(a) else jnp.where(condition, a, b), one, other)


def _takes_value(transform: Any) -> bool:
    """Whether its `update` has use for the value of the loss."""
    parameters = inspect.signature(transform.update).parameters.values()
    return any(p.name == "value" or p.kind is p.VAR_KEYWORD for p in parameters)
