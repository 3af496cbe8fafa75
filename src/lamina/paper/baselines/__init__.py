"""The baselines: surface finite elements, closest-point methods, the paper's method and GINO."""
