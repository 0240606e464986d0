import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class EmbedderBlock(eqx.Module):
    tokens: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    layernorm: eqx.nn.LayerNorm
    dropout: eqx.nn.Dropout

    def __init__(self, vocab, length, size, rate, key):
        tkey, pkey = jax.random.split(key)
        self.tokens = eqx.nn.Embedding(num_embeddings=vocab, embedding_size=size, key=tkey)
        self.positions = eqx.nn.Embedding(weight=0.1 * jax.random.normal(pkey, (length, size)))
        self.layernorm = eqx.nn.LayerNorm(shape=size)
        self.dropout = eqx.nn.Dropout(rate)

    def __call__(self, ids, enable_dropout=False, key=None):
        x = jax.vmap(self.tokens)(ids) + jax.vmap(self.positions)(jnp.arange(ids.shape[0]))
        return self.dropout(jax.vmap(self.layernorm)(x), inference=not enable_dropout, key=key)


class TransformerLayer(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.RMSNorm]
    mlp: eqx.nn.Linear
    output: eqx.nn.Linear
    rope: eqx.nn.RotaryPositionalEmbedding
    num_heads: int = eqx.field(static=True)

    def __init__(self, size, heads, rate, key):
        akey, mkey, okey = jax.random.split(key, 3)
        self.num_heads = heads
        self.attention = eqx.nn.MultiheadAttention(
            heads, size, use_query_bias=True, use_output_bias=True, dropout_p=rate, key=akey
        )
        self.norms = (eqx.nn.LayerNorm(shape=size), eqx.nn.RMSNorm(size))
        self.mlp = eqx.nn.Linear(size, 2 * size, key=mkey)
        self.output = eqx.nn.Linear(2 * size, size, key=okey)
        self.rope = eqx.nn.RotaryPositionalEmbedding(size // heads)

    def __call__(self, x, mask, enable_dropout=False, key=None):
        def process_heads(query, key, value):
            return jax.vmap(self.rope, 1, 1)(query), jax.vmap(self.rope, 1, 1)(key), value

        mask = jnp.broadcast_to(mask, (self.num_heads, x.shape[0], x.shape[0]))
        attended = self.attention(x, x, x, mask, inference=not enable_dropout, key=key, process_heads=process_heads)
        x = jax.vmap(self.norms[0])(x + attended)
        hidden = jax.nn.gelu(jax.vmap(self.mlp)(x))
        return jax.vmap(self.norms[1])(x + jax.vmap(self.output)(hidden))


class Bert(eqx.Module):
    shared: eqx.nn.Shared
    layers: list[TransformerLayer]

    def __init__(self, vocab, length, size, depth, key):
        ekey, hkey, *lkeys = jax.random.split(key, 2 + depth)
        embedder = EmbedderBlock(vocab, length, size, 0.1, ekey)
        head = eqx.nn.Linear(size, vocab, use_bias=False, key=hkey)
        self.shared = eqx.nn.Shared((embedder, head), lambda pair: pair[1].weight, lambda pair: pair[0].tokens.weight)
        self.layers = [TransformerLayer(size, 2, 0.1, lkey) for lkey in lkeys]

    def __call__(self, ids, *, enable_dropout=False, key=None):
        embedder, head = self.shared()
        assert head.weight is embedder.tokens.weight
        keys = [None] * (1 + len(self.layers)) if key is None else jax.random.split(key, 1 + len(self.layers))
        mask = ids != 0
        x = embedder(ids, enable_dropout, keys[0])
        for layer, lkey in zip(self.layers, keys[1:], strict=True):
            x = layer(x, mask, enable_dropout, lkey)
        return jax.vmap(head)(x)


def compute_loss(model, ids, key):
    keys = jax.random.split(key, ids.shape[0])
    scores = jax.vmap(lambda i, k: model(i, enable_dropout=True, key=k))(ids, keys)
    return optax.softmax_cross_entropy_with_integer_labels(scores, ids).mean()


def make_step(model, ids, opt_state, key, tx):
    key, new_key = jax.random.split(key)
    loss, grads = eqx.filter_value_and_grad(compute_loss)(model, ids, key)
    updates, opt_state = tx.update(grads, opt_state, model)
    return loss, eqx.apply_updates(model, updates), opt_state, new_key


key = jax.random.key(0)
ids = jnp.array([[1, 2, 3, 4, 0], [4, 3, 2, 1, 5]])
model = Bert(6, 5, 8, 1, key)
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))
p_make_step = eqx.filter_jit(make_step)
for step in range(4):
    loss, model, opt_state, key = p_make_step(model, ids, opt_state, key, tx)
    print(step, f"{loss:.4f}")
scores = eqx.filter_jit(jax.vmap(eqx.nn.inference_mode(model)))(ids)
print(scores.argmax(-1), sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_array))))
