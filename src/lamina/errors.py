"""The two ways in which lamina says no."""


class InputError(ValueError):
    """The input cannot be used as it is: the message says what came, what was expected, what to do."""


class SolveError(RuntimeError):
    """A solve did not reach its tolerance: the message gives cycles, residual and what to try."""
