"""Exceptions."""


class InputError(ValueError):
    """An input is invalid. The message says what came, what was expected, and what to do.

    Examples
    --------
    >>> import lamina
    >>> try:
    ...     lamina.Sphere(radius=-1.0)
    ... except lamina.InputError as error:
    ...     print(error)
    radius must be a positive number, got -1.0.
    """


class SolveError(RuntimeError):
    """A solve did not reach its tolerance. The message gives the cycles, the residual, and what to try.

    Examples
    --------
    >>> import lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> try:
    ...     lamina.poisson(domain, "x", tolerance=1e-30)
    ... except lamina.SolveError:
    ...     print("use a larger tolerance")
    use a larger tolerance
    """
