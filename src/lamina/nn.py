"""PDE solves as layers of a network, from fields to fields at the points of a surface, with gradients.

Fields are (m,) at the m points of a domain, (m, k) for k channels, or (b, m, k) for a batch. All of them are solved for
together. Layers keep no graph of the iterations: backward is one more solve of the same kind. If the surface of the
domain carries gradients, the results do, too.

>>> import torch, lamina
>>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.2, order=2, dtype=torch.float32)
>>> layer = lamina.nn.HeatLayer(channels=8)
>>> u = torch.randn(len(domain.points), 8, requires_grad=True)
>>> layer(u, domain).square().sum().backward()
>>> layer.time.shape, u.grad.shape
(torch.Size([8]), torch.Size([642, 8]))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from lamina.checks import positive_integer
from lamina.device import in_own_precision
from lamina.domain import Domain
from lamina.errors import InputError
from lamina.linear.krylov import check_convergence
from lamina.linear.operator import transforming
from lamina.pde.boundary import pose
from lamina.pde.conditions import Condition, checked
from lamina.pde.poisson import checked_number, default_tolerance
from lamina.pde.runge_kutta import SDIRK2, Cost, State, Stepper
from lamina.pde.variational import variational

__all__ = ["HeatLayer", "PoissonLayer"]


class _Layer(nn.Module):
    """The common base of layers.

    domain: where to solve, unless `forward` is given another one.
    tolerance: the relative residual of the solves.
    """

    def __init__(self, domain: Domain | None, tolerance: float | None):
        super().__init__()
        self.domain, self.tolerance = domain, tolerance
        self._ready: WeakSet[Domain] = WeakSet()

    width = 1  # channels

    def __getstate__(self) -> dict:
        """The module without its set of domains that are ready for torch.func: a copy makes its own."""
        return {**self.__dict__, "_ready": None}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__({**state, "_ready": WeakSet()})

    def _apply(self, fn, recurse=True):
        """As of any module. to(device) moves the domain, too, but never changes its precision: fields of any precision
        are taken.
        """
        super()._apply(fn, recurse)
        if self.domain is not None:
            self.domain = self.domain.to(fn(self.domain.points[:0]).device)
        return self

    def extra_repr(self) -> str:
        where = "" if self.domain is None else f"domain={self.domain.surface.name}, unknowns={self.domain.unknowns}, "
        tolerance = "" if self.tolerance is None else f", tolerance={self.tolerance:g}"
        return f"{where}{self._settings()}{tolerance}"

    def _settings(self) -> str:
        raise NotImplementedError

    def _on(self, domain: Domain | None) -> Domain:
        domain = domain or self.domain
        if not isinstance(domain, Domain):
            raise InputError(
                f"{type(self).__name__} needs a Domain, got {type(domain).__name__}; give one to it or to its call."
            )
        if transforming() and domain not in self._ready:
            # Sparse matrices cannot be made inside the transformations of torch.func. One solve outside makes them all.
            self._ready.add(domain)
            with temporarily_clear_interpreter_stack():
                self(domain.points.new_zeros(len(domain.points), self.width), domain)
        return domain


class PoissonLayer(_Layer):
    """A layer f -> u with Laplacian(u) - screening u = f, solved as by `lamina.poisson`.

    With screening 0, u has zero mean on each component on which no condition fixes values, and the mean of f is removed
    there.

    Parameters
    ----------
    domain : Domain, optional
        Where to solve, unless `forward` is given another one.
    screening : float or Tensor, default 0.0
        A number >= 0, or a tensor of shape (), which may be a parameter.
    conditions : Condition or sequence of Condition, optional
        As in `lamina.poisson`.
    tolerance : float, optional
        The relative residual of the solves, as in `lamina.poisson`.

    Examples
    --------
    >>> import torch, lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> layer = lamina.nn.PoissonLayer(domain, screening=1.0)
    >>> f = domain.points[:, 0].clone().requires_grad_()
    >>> layer(f).square().sum().backward()
    >>> f.grad.shape
    torch.Size([642])
    """

    def __init__(
        self,
        domain: Domain | None = None,
        *,
        screening: float | Tensor = 0.0,
        conditions: Sequence[Condition] | Condition | None = None,
        tolerance: float | None = None,
    ):
        super().__init__(domain, tolerance)
        self.screening, self.conditions = screening, conditions

    def _settings(self) -> str:
        asked = checked(self.conditions)
        held = f", conditions=[{', '.join(c.name for c in asked)}]" if asked else ""
        return f"screening={float(self.screening):g}{held}"

    @in_own_precision
    def forward(self, f: Tensor, domain: Domain | None = None) -> Tensor:
        """Solve for a field, for several channels, or for a batch.

        Parameters
        ----------
        f : Tensor
            The right-hand side (m,), (m, k) or (b, m, k) at `domain.points`.
        domain : Domain, optional
            Where to solve, if not on the domain of the layer.

        Returns
        -------
        Tensor
            u, of the shape of f.

        Raises
        ------
        InputError
            If there is no domain, or f has another shape.
        SolveError
            If a solve does not reach its tolerance.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> lamina.nn.PoissonLayer()(domain.points, domain).shape
        torch.Size([642, 3])
        """
        problem = pose(self._on(domain), self.conditions, None)
        domain, scheme = problem.domain, problem.scheme
        shift = checked_number(self.screening, "screening")
        if shift is None:
            raise InputError("the screening of a PoissonLayer is one number; use lamina.poisson for one that varies.")
        columns = _columns(f, domain)
        g = domain.load(columns)
        if problem.load is not None:
            held = problem.load(0.0)
            g = g - (held if g.ndim == 1 else held[:, None])
        tolerance = default_tolerance(domain, self.tolerance)
        result = scheme.solve(g, shift, tolerance=tolerance, start=None, report=None)
        check_convergence(result, tolerance, True)
        u = result.solution
        if not (isinstance(shift, Tensor) or shift):
            u = scheme.remove_mean(u, lambda u: domain.mean(domain.readout @ u))
        values = domain.readout @ u
        return _like(values if problem.kept is None else problem.kept.hold(domain.points, values, 0.0), f)


class HeatLayer(_Layer):
    """A layer u0 -> u(t): the heat equation, with a time t for each channel. The integral of each channel is conserved.

    Parameters
    ----------
    channels : int, default 1
        The number of channels.
    domain : Domain, optional
        Where to solve, unless `forward` is given another one.
    time : float, sequence of float or Tensor, default 0.01
        The initial times, one number or one for each channel, in the units of the surface squared.
    learn : bool, default True
        Whether the times are parameters to learn.
    steps : int, default 2
        The number of time steps, of a method of second order that does not oscillate. Large times need more of them.
    tolerance : float, optional
        The relative residual of the solves, as in `lamina.poisson`.

    Raises
    ------
    InputError
        If a number is not positive, or if the number of times is wrong.

    Examples
    --------
    >>> import torch, lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> layer = lamina.nn.HeatLayer(channels=3, domain=domain)
    >>> layer(domain.points).shape, layer.time.shape
    (torch.Size([642, 3]), torch.Size([3]))
    """

    def __init__(
        self,
        channels: int = 1,
        domain: Domain | None = None,
        *,
        time: float | Sequence[float] | Tensor = 0.01,
        learn: bool = True,
        steps: int = 2,
        tolerance: float | None = None,
    ):
        super().__init__(domain, tolerance)
        channels, steps = positive_integer("channels", channels), positive_integer("steps", steps)
        given = torch.as_tensor(time, dtype=torch.get_default_dtype()).detach()
        if given.shape not in ((), (channels,)) or not bool((torch.isfinite(given) & (given > 0)).all()):
            raise InputError(f"time must be a positive number, or {channels} of them, got {time!r}.")
        self.channels, self.width, self.steps = channels, channels, steps
        # Logarithms of times, so that no step of an optimiser makes a time negative.
        self.log_time = nn.Parameter(given.log().expand(channels).clone(), requires_grad=learn)

    def _settings(self) -> str:
        low, high = (f"{float(t):.3g}" for t in torch.aminmax(self.time.detach()))
        time = low if low == high else f"{low} to {high}"
        return f"channels={self.channels}, steps={self.steps}, time={time}, learned={self.log_time.requires_grad}"

    @property
    def time(self) -> Tensor:
        """The times (channels,) of the channels."""
        return self.log_time.exp()

    @in_own_precision
    def forward(self, u: Tensor, domain: Domain | None = None) -> Tensor:
        """The channels, each after its time.

        Parameters
        ----------
        u : Tensor
            Fields (m,), (m, channels) or (b, m, channels) at `domain.points`.
        domain : Domain, optional
            Where to solve, if not on the domain of the layer.

        Returns
        -------
        Tensor
            Fields of the same shape.

        Raises
        ------
        InputError
            If there is no domain, or u has another shape.
        SolveError
            If a solve does not reach its tolerance.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = torch.ones(2, 642, 1)  # a batch of two; constants stay what they are
        >>> bool((lamina.nn.HeatLayer()(u, domain) - 1).abs().max() < 1e-5)
        True
        """
        domain = self._on(domain)
        scheme = variational(domain, None, "a HeatLayer")
        columns = _columns(u, domain)
        width = 1 if columns.ndim == 1 else columns.shape[1]
        if (1 if u.ndim == 1 else u.shape[-1]) != self.channels:
            raise InputError(f"HeatLayer of {self.channels} channels got a field of shape {tuple(u.shape)}.")
        time = self.time.to(columns).repeat(width // self.channels)
        # Only the load enters, so a field that is given by its values need not be projected first.
        state = State(domain.load(columns.reshape(len(columns), width)))
        stepper = Stepper(SDIRK2, scheme, default_tolerance(domain, self.tolerance), warm=False)
        for _ in range(self.steps):
            state, _, _ = stepper.step(state, None, 0.0, time / self.steps, Cost())
        return _like((domain.readout @ cast(Tensor, state.unknowns)).reshape(columns.shape), u)


def _columns(field: Tensor, domain: Domain) -> Tensor:
    """A field (m,), (m, k) or (b, m, k) as (m,) or (m, columns), in the precision of the domain."""
    m = len(domain.points)
    if not isinstance(field, Tensor) or field.ndim not in (1, 2, 3) or field.shape[-2 if field.ndim > 1 else 0] != m:
        shape = tuple(field.shape) if isinstance(field, Tensor) else type(field).__name__
        raise InputError(f"The field has shape {shape}; expected ({m},), ({m}, k) or (b, {m}, k) for {m} points.")
    field = field.to(domain.points)
    return field if field.ndim < 3 else field.movedim(1, 0).reshape(m, -1)


def _like(columns: Tensor, field: Tensor) -> Tensor:
    """Columns in the shape and precision of the field that they were made of."""
    if field.ndim == 3:
        b, m, k = field.shape
        columns = columns.reshape(m, b, k).movedim(0, 1)
    return columns.to(field)
