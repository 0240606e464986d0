"""ott: Sinkhorn's cost between 1,500 and 1,200 points with its gradient, and a Gromov-Wasserstein coupling."""

import jax
import jax.numpy as jnp
from ott.geometry import pointcloud
from ott.problems.linear import linear_problem
from ott.problems.quadratic import quadratic_problem
from ott.solvers.linear import sinkhorn
from ott.solvers.quadratic import gromov_wasserstein

x = jax.random.normal(jax.random.key(0), (1500, 3))
y = jax.random.normal(jax.random.key(1), (1200, 3)) + 0.5


@jax.jit
def cost(x, y):
    problem = linear_problem.LinearProblem(pointcloud.PointCloud(x, y, epsilon=5e-2))
    return sinkhorn.Sinkhorn(max_iterations=200)(problem).reg_ot_cost


@jax.jit
def coupling(x, y):
    problem = quadratic_problem.QuadraticProblem(pointcloud.PointCloud(x), pointcloud.PointCloud(y))
    solver = gromov_wasserstein.GromovWasserstein(linear_solver=sinkhorn.Sinkhorn(), epsilon=1.0, max_iterations=20)
    return solver(problem).matrix


print("cost", cost(x, y))
print("gradient", jnp.linalg.norm(jax.jit(jax.grad(cost))(x, y)))
print("coupling", jnp.sum(coupling(x[:200], y[:180, :2])))
