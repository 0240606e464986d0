"""What XLA's CPU backend makes of a program: what is one kernel, and which shapes are slow."""
