from .transform import optimize as optimize
