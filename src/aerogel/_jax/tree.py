"""Pytrees in the registries that JAX's own transformations use."""

from typing import Any

from jax._src import tree_util


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure as `jax.jit` sees them (its registry, not `tree_util`'s default one)."""
    return tree_util.tracing_registry.flatten(tree)


def register_node(
    cls: type, flatten: Any, unflatten: Any, flatten_with_keys: Any, dispatch_flatten: Any, dispatch_unflatten: Any
) -> None:
    """Makes `cls` a node of pytrees, and another one for the C++ code that answers calls of compiled functions.

    `jax.tree_util.register_pytree_with_keys` but for the last two: JAX gives that code a registry of its own so that
    it can take PRNG key arrays apart, which are leaves elsewhere. The leaves must be the same both ways.
    """
    for registry in (tree_util.default_registry, tree_util.none_leaf_registry, tree_util.tracing_registry):
        registry.register_node(cls, flatten, unflatten, flatten_with_keys)
    tree_util.dispatch_registry.register_node(cls, dispatch_flatten, dispatch_unflatten)
    tree_util._registry[cls] = tree_util._RegistryEntry(flatten, unflatten)


def dispatch_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure as the C++ code sees them that answers calls of compiled functions."""
    return tree_util.dispatch_registry.flatten(tree)
