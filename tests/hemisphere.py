"""The hemisphere: its Poisson problem with each kind of condition at the rim, and a mesh of it."""

import torch

import lamina
from lamina import Dirichlet, Neumann, Robin
from lamina.gallery import hemisphere_poisson
from lamina.surfaces.icosphere import icosphere

PROBLEM = hemisphere_poisson()
exact, rhs, flux = PROBLEM.solution, PROBLEM.rhs, PROBLEM.flux

KINDS = {
    "Dirichlet": Dirichlet("rim", exact),
    "Neumann": Neumann("rim", flux),
    "Robin": Robin("rim", lambda x: flux(x) + 2.5 * exact(x), 2.5),
}


def half_icosphere(level: int) -> lamina.Mesh:
    """The triangles above z = 0; their rim is a zigzag."""
    V, F = icosphere(level)
    used, corner = torch.unique(F[(V[F][:, :, 2] > -1e-9).all(1)], return_inverse=True)
    return lamina.Mesh(V[used], corner)
