"""Functions on the cells that a surface cuts."""
