"""Operators of a domain with a diffusivity, and checks of diffusivities and screenings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lamina.checks import returned
from lamina.domain import Domain
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.grid.quadrature import Quadrature
from lamina.spaces.operators import CutCellOperators

# Tensors are accepted as symmetric if no entry differs from its mirror image by more than this share of the largest
# entry. It lets rounding in single precision pass.
MAX_SKEWNESS = 1e-6
# Tensors are accepted as positive semidefinite if no eigenvalue is below minus this share of the largest entry. It
# lets the rounding of tensors of rank 1 or 2 pass.
MAX_NEGATIVE_EIGENVALUE = 1e-9

# A number, values (m,) or tensors (m, 3, 3) at domain.points, a function of points with such values, or a formula.
Diffusivity = Callable[[Tensor], Tensor] | Tensor | float | str
# A number, values (m,) at domain.points, a function of points, or a formula.
Coefficient = Callable[[Tensor], Tensor] | Tensor | float | str


def variational(domain: Domain, diffusivity: Diffusivity | None, what: str) -> CutCellOperators:
    """The operators of a domain, with a diffusivity.

    what: the option that needs weak forms, for messages.
    Raises InputError for the domain of a baseline, which has no weak forms, or for an invalid diffusivity.
    """
    if not domain.has_weak_forms:
        raise baseline_refuses(domain, what)
    scheme = domain.scheme
    if diffusivity is None:
        return scheme
    return CutCellOperators(scheme.cut, on_quadrature(tensor_field(domain, diffusivity), scheme.quadrature))


def baseline_refuses(domain: Domain, what: str) -> InputError:
    """The error for an option that the domain of a baseline does not support."""
    return InputError(
        f"{what} needs functions on cut cells, and this domain is of the {domain.scheme.name} scheme, a baseline; use "
        "lamina.Domain(surface, order=2 or 3)."
    )


def is_number(data: Diffusivity | None) -> bool:
    return data is not None and not isinstance(data, str) and not callable(data) and torch.as_tensor(data).ndim == 0


def positive_number(data: Diffusivity | None) -> float | Tensor:
    """A diffusivity that is a number, or a tensor if it carries gradients. Raises InputError unless it is positive."""
    assert data is not None
    assert not callable(data)
    value = float(data.detach() if isinstance(data, Tensor) else data)
    if not 0 < value < torch.inf:
        raise InputError(f"the diffusivity must be positive and finite, got {value!r} somewhere.")
    return data if isinstance(data, Tensor) and data.requires_grad else value


def screening_on(domain: Domain, data: Coefficient, quadrature: Quadrature) -> Tensor:
    """A screening (q,) at the points of a quadrature. Raises InputError where it is negative."""
    values = domain.field(data, "the screening")(quadrature.points)
    if not bool((values >= 0).all()):
        raise InputError(f"the screening must be >= 0, got {float(values.min()):.3g} somewhere.")
    return values


def on_quadrature(diffusivity: Callable[[Tensor], Tensor], quadrature: Quadrature) -> Tensor:
    """A diffusivity at the points of a quadrature. Raises InputError where it has no tangential part."""
    values, normals = diffusivity(quadrature.points), quadrature.normals
    if values.ndim == 3:
        across = torch.einsum("qa,qab,qb->q", normals, values, normals)
        if not bool((values.diagonal(dim1=1, dim2=2).sum(1) - across > 0).all()):
            raise InputError("the diffusivity has no tangential part somewhere; nothing would diffuse there.")
    return values


def tensor_field(domain: Domain, data: Diffusivity) -> Callable[[Tensor], Tensor]:
    """A diffusivity as a checked function of points: positive numbers (n,) or tensors (n, 3, 3)."""
    data = as_data(data, "the diffusivity")
    if not callable(data) and torch.as_tensor(data).ndim == 3:
        values = torch.as_tensor(data).to(domain.points)
        count = len(domain.points)
        if values.shape != (count, 3, 3):
            raise InputError(
                f"the diffusivity has shape {tuple(values.shape)}; expected ({count},) or ({count}, 3, 3), "
                "one value for each of domain.points."
            )

        def interpolated(x: Tensor) -> Tensor:
            return domain.interpolate(values.reshape(count, 9), x).reshape(-1, 3, 3)

        function = interpolated
    else:
        function = data if callable(data) else domain.field(data, "the diffusivity")

    def checked(x: Tensor) -> Tensor:
        values = returned(function(x), "the diffusivity", len(x), tails=("", "3, 3")).to(x)
        wrong = ~torch.isfinite(values)
        if values.ndim == 1:
            wrong = wrong | ~(values > 0)
            if bool(wrong.any()):
                raise InputError(
                    f"the diffusivity must be positive and finite, got {float(values[wrong].min())!r} somewhere."
                )
            return values
        if bool(wrong.any()):
            raise InputError(f"the diffusivity must be finite, got {float(values[wrong].min())!r} somewhere.")
        skew = (values - values.transpose(1, 2)).abs().amax()
        if not bool(skew <= MAX_SKEWNESS * values.abs().amax()):
            raise InputError("the diffusivity must be symmetric (3, 3) tensors; symmetrise them.")
        lowest = _lowest_eigenvalue(values)
        if not bool((lowest >= -MAX_NEGATIVE_EIGENVALUE * values.abs().amax()).all()):
            raise InputError(
                f"the diffusivity must be positive semidefinite, got an eigenvalue of {float(lowest.min()):.3g}."
            )
        return values

    return checked


def _lowest_eigenvalue(A: Tensor) -> Tensor:
    """The lowest eigenvalue (n,) of symmetric matrices (n, 3, 3), by the trigonometric formula.

    Libraries for GPUs do not accept so many matrices at once.
    """
    mean = A.diagonal(dim1=1, dim2=2).sum(1) / 3
    B = A - mean[:, None, None] * torch.eye(3, dtype=A.dtype, device=A.device)
    size = (B.square().sum((1, 2)) / 6).sqrt()
    a, b, c = B.unbind(1)
    determinant = (a * torch.linalg.cross(b, c)).sum(1)
    cosine = (determinant / (2 * size**3).clamp_min(torch.finfo(A.dtype).tiny)).clamp(-1, 1)
    return mean + 2 * size * torch.cos(torch.acos(cosine) / 3 + 2 * torch.pi / 3)
