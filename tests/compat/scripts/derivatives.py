import equinox as eqx
import jax
import jax.numpy as jnp

x = jnp.array([0.5, -1.0])


def f(x, how, times):
    return how(x) * times


print(eqx.filter_jvp(f, (x, jnp.sin, 3.0), (jnp.ones(2), None, None)))
out, pullback = eqx.filter_vjp(f, x, jnp.sin, 3.0)
print(out, pullback(jnp.ones(2)))
out, pullback, aux = eqx.filter_vjp(lambda x: (x**2, "aux"), x, has_aux=True)
print(out, pullback(x), aux)
for transform in (eqx.filter_jacfwd, eqx.filter_jacrev):
    print(transform(f)(x, jnp.sin, 3.0), transform(lambda x: (x**2, x), has_aux=True)(x))
print(eqx.filter_hessian(lambda p: jnp.sum(p["x"] ** 3) * p["n"])({"x": x, "n": 2})["x"]["x"])
print(eqx.filter_grad(lambda p: jnp.sum(p["x"] ** 2) * p["s"])({"x": x, "s": 2.0, "name": "a"}))
print(eqx.filter_value_and_grad(eqx.filter_checkpoint(lambda x, n: jnp.sum(x**n)))(x, 3))
print(eqx.filter_eval_shape(lambda x, n: (x * n, n, "a"), x, 2)[1:])
program, shapes, rest = eqx.filter_make_jaxpr(lambda x, n: {"a": jnp.sin(x), "n": n})(x, 2)
print(program, shapes, rest)


@jax.grad
def through(y):
    z = y * 3
    converted = eqx.filter_closure_convert(lambda a, n: (jnp.sum(z * a) * n, "s"), x, 2)
    print([c.shape for c in jax.tree.leaves(eqx.filter(converted, eqx.is_array))])
    return converted(x, 2)[0]


print(through(2.0))


@eqx.filter_custom_jvp
def call(x, y, *, fn):
    return fn(x, y)


@call.def_jvp
def call_jvp(primals, tangents, *, fn):
    x, y = primals
    tx, ty = tangents
    print("tangent of y:", ty)
    return call(x, y, fn=fn), 2 * tx


print(eqx.filter_grad(lambda x: jnp.sum(call(x, jnp.ones(2), fn=lambda a, b: a * b)))(x))


@eqx.filter_custom_vjp
def scaled(both, how):
    return how(both["x"]) * both["n"]


@scaled.def_fwd
def scaled_fwd(perturbed, both, how):
    print(perturbed)
    return scaled(both, how), (both["x"], "kept")


@scaled.def_bwd
def scaled_bwd(residuals, grad, perturbed, both, how):
    print(residuals[1], perturbed, both["n"], how.__name__)
    return {"x": 10 * grad * residuals[0], "n": None}


print(eqx.filter_grad(lambda both: jnp.sum(scaled(both, jnp.sin)))({"x": x, "n": 2}))
print(eqx.filter_jit(eqx.filter_grad(lambda both: jnp.sum(scaled(both, jnp.sin))))({"x": x, "n": 2}))
shape = jax.ShapeDtypeStruct((2,), jnp.float32)
print(jax.jit(lambda x: eqx.filter_pure_callback(lambda x, n: x * n, x, 3, result_shape_dtypes=shape))(x))
print(eqx.filter_shard((x, "a"), jax.devices()[0]))
print(eqx.Partial(f, x, times=2)(jnp.cos), eqx.filter_jit(eqx.Partial(f, x))(jnp.cos, 2))
print(eqx.tree_flatten_one_level({"x": 3, "b": (1, 2)})[0])
