"""What XLA's CPU backend makes of a program: its kernels, what they compute twice, and in which shapes they are slow."""
