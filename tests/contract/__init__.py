"""The contract of `ag.optimize`: what "composes" means, a test a line."""
