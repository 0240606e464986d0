"""jraph: gradients of a graph network and of graph attention, 1,000 nodes and 6,000 edges."""

import haiku as hk
import jax
import jax.numpy as jnp
import jraph
import numpy as np
import optax

NODES, EDGES = 1000, 6000
rng = np.random.default_rng(0)
graph = jraph.GraphsTuple(
    nodes=jnp.asarray(rng.normal(size=(NODES, 16)), jnp.float32),
    edges=jnp.asarray(rng.normal(size=(EDGES, 4)), jnp.float32),
    senders=jnp.asarray(rng.integers(0, NODES, EDGES)),
    receivers=jnp.asarray(rng.integers(0, NODES, EDGES)),
    n_node=jnp.array([NODES // 2] * 2),
    n_edge=jnp.array([EDGES // 2] * 2),
    globals=jnp.zeros((2, 8)),
)


def network(graph):
    def update(*parts):
        return hk.Linear(32)(jax.nn.relu(hk.Linear(64)(jnp.concatenate(parts, -1))))

    for _ in range(2):
        graph = jraph.GraphNetwork(update_edge_fn=update, update_node_fn=update, update_global_fn=update)(graph)
    return graph.globals


def attention(p, graph):
    h = graph.nodes @ p["w"]
    sent, received = h[graph.senders], h[graph.receivers]
    logits = jax.nn.leaky_relu((sent * p["sent"]).sum(-1) + (received * p["received"]).sum(-1))
    weights = jraph.segment_softmax(logits, graph.receivers, NODES)
    return jax.ops.segment_sum(weights[:, None] * sent, graph.receivers, NODES)


net = hk.without_apply_rng(hk.transform(network))
params = net.init(jax.random.key(0), graph)
_, grads = jax.jit(jax.value_and_grad(lambda p, graph: jnp.mean(net.apply(p, graph) ** 2)))(params, graph)
print("network", optax.global_norm(grads))
heads = {
    "w": jax.random.normal(jax.random.key(1), (16, 32)) / 4,
    "sent": jnp.full(32, 0.1),
    "received": jnp.full(32, 0.2),
}
print("attention", optax.global_norm(jax.jit(jax.grad(lambda p: jnp.sum(attention(p, graph) ** 2)))(heads)))
