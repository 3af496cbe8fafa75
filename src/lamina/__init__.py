"""lamina: partial differential equations on any surface representation, without remeshing.

>>> import lamina
>>> domain = lamina.Domain(lamina.Sphere(), spacing=0.2)
>>> u = lamina.poisson(domain, lambda x: -6 * x[:, 0] * x[:, 1])
>>> exact = domain.points[:, 0] * domain.points[:, 1]
>>> bool((u.values - exact).abs().max() < 1e-2)
True
"""

import warnings as _warnings

from lamina import baselines, nn, paper
from lamina.domain import Domain
from lamina.errors import InputError, SolveError
from lamina.pde.conditions import Dirichlet, Neumann, Points, Robin
from lamina.pde.eigen import Eigenmodes, eigenmodes
from lamina.pde.heat import heat
from lamina.pde.poisson import poisson
from lamina.solution import Solution
from lamina.surfaces.analytic import Ellipsoid, Sphere, Torus
from lamina.surfaces.base import Surface
from lamina.surfaces.clipped import clip
from lamina.surfaces.files import load
from lamina.surfaces.implicit import Implicit
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.point_cloud import PointCloud
from lamina.surfaces.spherical_map import SphericalMap, spike, starfruit
from lamina.surfaces.splats import Splats

# torch announces once a process that CSR tensors are in beta and unchecked; lamina's users did not ask.
_warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
_warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")

__version__ = "0.2.0.dev0"

__all__ = [
    "Dirichlet",
    "Domain",
    "Eigenmodes",
    "Ellipsoid",
    "Implicit",
    "InputError",
    "Mesh",
    "Neumann",
    "PointCloud",
    "Points",
    "Robin",
    "Solution",
    "SolveError",
    "Sphere",
    "SphericalMap",
    "Splats",
    "Surface",
    "Torus",
    "baselines",
    "clip",
    "eigenmodes",
    "heat",
    "load",
    "nn",
    "paper",
    "poisson",
    "spike",
    "starfruit",
]


def __getattr__(name: str) -> object:
    if name == "Attention":
        _warnings.warn("lamina.Attention is lamina.paper.Attention now.", FutureWarning, stacklevel=2)
        return paper.Attention
    raise AttributeError(f"module 'lamina' has no attribute {name!r}")
