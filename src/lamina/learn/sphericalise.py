"""A map of a closed mesh of genus 0 to the unit sphere without folds.

The first step is conformalized mean curvature flow. The vertices x (n, 3) move by

    (M_t + d L) x_{t+1} = M_t x_t,

where L is the cotangent stiffness matrix of the given mesh at all times, and M_t the mass matrix of the current one.
Mean curvature flow would use the current L_t, and pinch. With L fixed the flow ends at a sphere, and the map to it is
as conformal as a mesh allows (Kazhdan, Solomon and Ben-Chen, 2012, "Can mean-curvature flow be modified to be
non-singular?"). After every step a Moebius map moves the centre of area of the mesh to the centre of the sphere (Baden,
Crane and Kazhdan, 2018, "Moebius registration"). So no side is made smaller than necessary.

A conformal map shrinks limbs exponentially with their length. The earlier steps of the flow shrink them less. So of all
steps at which the radial projection x / |x| folds no triangle, the one with the least energy is taken. Then its
vertices are moved to lower the energy further (`lamina.learn.sphere_distortion`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import splu
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.cotangent import cotangent_stiffness, mass_matrix
from lamina.geometry.triangles import vertex_areas
from lamina.learn.sphere_distortion import SymmetricDirichlet, looks_outwards, with_lower_energy
from lamina.linear.graph import components

Array = NDArray[np.float64]

# The step d of the flow on a surface of area 1. The lowest mode of a sphere of that area decays at a rate of 25, so
# one step takes about an eighth of it. Double would leave half as many meshes to choose the best map from.
FLOW_STEP = 0.005
MAX_FLOW_STEPS = 200
MAX_STEPS_WITHOUT_LOWER_ENERGY = 10  # the flow ends after this number of steps that do not lower the least energy
MAX_CENTRE_OFFSET = 1e-9  # between the centre of area and the centre of the unit sphere
MAX_CENTRING_STEPS = 100  # of Newton's method
LONGEST_CENTRING_STEP = 0.5  # of Newton's method: the centre c of a Moebius map must stay inside the unit sphere


def sphericalise(vertices: Tensor, faces: Tensor) -> Tensor:
    """Unit vectors (n, 3) for the vertices (n, 3) of triangles (m, 3), such that no triangle is turned over.

    Raises InputError unless the mesh is one closed, oriented surface without handles in which all vertices are used.
    Also raises it if some triangle is turned over at every step of the flow.
    """
    check_sphere(len(vertices), faces)
    V, F = vertices.detach().cpu().double(), faces.detach().cpu()
    if float(looks_outwards(*V[F].unbind(1)).sum()) < 0:
        F = F.flip(1)
    dirichlet, area = SymmetricDirichlet(V, F), vertex_areas(V, F).numpy()
    best, least_energy, age, fewest = None, math.inf, 0, len(F)
    for x in _flow(V, F):
        s = torch.from_numpy(centred_on_sphere(x / np.linalg.norm(x, axis=1, keepdims=True), area))
        fewest = min(fewest, int((looks_outwards(*s[F].unbind(1)) <= 0).sum()))
        energy = dirichlet.of_map(s)
        best, least_energy, age = (s, energy, 0) if energy < least_energy else (best, least_energy, age + 1)
        if best is not None and age > MAX_STEPS_WITHOUT_LOWER_ENERGY:
            break
    if best is None:
        raise InputError(
            f"At least {fewest} of {len(F)} triangles turn over when the mesh is laid over a sphere, as long thin "
            "parts shrink to points there. Give a mesh with better triangles (remesh it) or with shorter limbs."
        )
    return with_lower_energy(dirichlet, best).to(vertices)


def check_sphere(count: int, faces: Tensor) -> None:
    """Raise InputError unless triangles (m, 3) over `count` vertices form a sphere: Euler's V - E + F = 2."""
    start, end = faces.reshape(-1), faces.roll(-1, 1).reshape(-1)
    # Each edge of a closed and oriented surface is passed once in either direction.
    forward, backward = ((a * count + b).sort().values for a, b in ((start, end), (end, start)))
    if not torch.equal(forward, backward) or bool((forward.diff() == 0).any()):
        raise InputError(
            "A spherical map needs a closed mesh whose edges join two faces of the same orientation, and this one has "
            "holes, seams or edges of more than two faces; close or repair it, or solve on the mesh as it is."
        )
    parts = int(components(count, start, end).max()) + 1
    if parts > 1:
        raise InputError(f"A spherical map needs a mesh in one part, and this one has {parts}; give them one by one.")
    genus = (2 - (count - len(start) // 2 + len(faces))) // 2
    if genus:
        raise InputError(
            f"A spherical map needs a mesh without handles (genus 0), and this one has genus {genus}; "
            "solve on the mesh as it is."
        )


def _flow(V: Tensor, F: Tensor) -> Iterator[Array]:
    """The vertices (n, 3) at each step of the flow, moved to their centre of area and scaled to area 1."""
    faces = F.numpy()
    L = cotangent_stiffness(V.numpy(), faces)
    x = V.numpy()
    for _ in range(MAX_FLOW_STEPS):
        area = vertex_areas(torch.from_numpy(x), F).numpy()
        x = (x - area @ x / area.sum()) / np.sqrt(area.sum())
        yield x
        M = mass_matrix(x, faces)
        x = splu(sp.csc_matrix(M + FLOW_STEP * L)).solve(M @ x)
        # Limbs that have shrunk below rounding make the matrix singular; later steps are useless then.
        if not (np.isfinite(x).all() and np.ptp(x, axis=0).all()):
            return


def centred_on_sphere(s: Array, area: Array) -> Array:
    """Unit vectors s (n, 3), moved by Moebius maps of the sphere until sum_i area_i s_i = 0.

    The map with centre c, |c| < 1, is s -> (1 - |c|^2) (s + c) / |s + c|^2 + c. For small c it moves s by
    2 (c - (s.c) s). Newton's method finds c from that.
    """
    weight = area / area.sum()
    for _ in range(MAX_CENTRING_STEPS):
        mean = weight @ s
        if np.linalg.norm(mean) < MAX_CENTRE_OFFSET:
            break
        jacobian = 2 * (np.eye(3) - (s * weight[:, None]).T @ s)
        c = -np.linalg.solve(jacobian, mean)
        c *= min(1.0, LONGEST_CENTRING_STEP / np.linalg.norm(c))
        away = s + c
        s = (1 - c @ c) * away / (away * away).sum(1, keepdims=True) + c
        s = s / np.linalg.norm(s, axis=1, keepdims=True)
    return s
