from .optimize import optimize as optimize
