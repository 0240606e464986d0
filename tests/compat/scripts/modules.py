import abc
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp


class Layer(eqx.Module):
    size: eqx.AbstractVar[int]
    kind: eqx.AbstractClassVar[str]

    @abc.abstractmethod
    def __call__(self, x): ...

    def __check_init__(self):
        if self.size < 0:
            raise ValueError("negative")


class Scale(Layer):
    size: int = eqx.field(static=True)
    factor: jax.Array = eqx.field(converter=jnp.asarray, default=2.0)
    doubled: jax.Array = eqx.field(init=False)
    kind = "scale"

    def __post_init__(self):
        self.doubled = 2 * jnp.asarray(self.factor)

    def __call__(self, x):
        return self.factor * x + self.doubled

    @eqx.filter_jit
    def method(self, x, n):
        return self(x) * (n + 1 if n > 2 else n)

    @property
    def half(self):
        return self.factor / 2


scale = Scale(3)
print(scale(jnp.ones(2)), scale.method(jnp.ones(2), 3), scale.half, scale.kind, scale.size)
for make in (lambda: Scale(-1), lambda: Layer()):
    try:
        make()
    except (ValueError, TypeError) as error:
        print(type(error).__name__)
try:
    scale.factor = 1
except AttributeError:
    print("frozen")
print(jax.tree.map(lambda x: x + 1, scale)(jnp.ones(2)))
print(scale == Scale(3), scale == Scale(4))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    eqx.static_field()
print(len(caught))


@eqx.filter_jit(donate="all-except-first")
def step(model, state):
    return jax.tree.map(jnp.add, model, state)


print(step(jnp.ones(2), jnp.ones(2)), step.lower(jnp.ones(2), jnp.ones(2)) is not None)


class Base(eqx.Module, is_abstract=True):
    weight: jax.Array


class Final(Base, strict=True):
    def __call__(self, x):
        return self.weight * x


try:
    Base(jnp.ones(2))
except TypeError:
    print("abstract")
print(Final(jnp.ones(2))(3.0))
