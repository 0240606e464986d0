"""Whether cuDNN's attention can be called here."""

from functools import cache

# What JAX's checks raise where cuDNN is missing or too old, and what reading them raises in a JAX that has moved them.
_NO = (ImportError, AttributeError, RuntimeError, NotImplementedError, ValueError, IndexError)


@cache
def why_no_cudnn_attention() -> str | None:
    """Why `jax.nn.dot_product_attention(..., implementation="cudnn")` cannot be called; None where it can.

    JAX's own checks are asked, once: they were looked at in jax 0.10.2, 0.11.2 and 0.12.0.1. cuDNN itself asks for a
    device of compute capability 8.0.
    """
    try:
        from jax._src.cudnn import fused_attention_stablehlo as cudnn

        cudnn.check_cudnn_version()
        able = cudnn.check_compute_capability("8.0")
    except _NO as error:
        return f"cuDNN cannot be asked: {error}"
    return None if able else "the device is older than cuDNN's attention asks for"
