"""How random typed JAX programs are written down: `strategies.py` is the door, this is the workshop."""
