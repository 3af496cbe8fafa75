"""A closed mesh of genus 0 laid over the unit sphere without folds.

First by conformalized mean curvature flow: the vertices x (n, 3) flow by

    (M_t + d L) x_{t+1} = M_t x_t,

L the cotangent stiffness matrix of the given mesh, kept from first to last, and M_t the mass matrix of the current
one. Mean curvature flow would use L_t too, and pinch; with L fixed the flow ends at a sphere, and the map to it is
conformal as far as a mesh allows (Kazhdan, Solomon and Ben-Chen, 2012, "Can mean-curvature flow be modified to be
non-singular?"). At every moment a Moebius map puts the centre of area of the mesh at that of the sphere (Baden, Crane
and Kazhdan, 2018, "Moebius registration"), so that no side gets less room than it must.

A conformal map shrinks limbs exponentially with their length, and the way to it does so less. So of all moments at
which the radial projection x / |x| folds nothing the one of least energy is taken, and its vertices are moved until
limbs have room: `lamina.learn.sphere_distortion`.
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
from lamina.learn.sphere_distortion import Stretch, looks_outwards, relaxed
from lamina.linear.graph import components

Array = NDArray[np.float64]

TIME_STEP = 0.005  # d, of a surface of area 1; the lowest mode of a sphere that large decays at a rate of 25
MOST_STEPS, PATIENCE = 200, 10  # of the flow, and of those after the best without a better one
CENTRED = 1e-9  # distance of the centre of area from the centre of the sphere


def sphericalise(vertices: Tensor, faces: Tensor) -> Tensor:
    """Unit vectors (n, 3) for the vertices (n, 3) of triangles (m, 3), no triangle of which is turned over.

    Raises InputError unless the mesh is one closed, oriented surface without handles, all of whose vertices are used,
    and if at all moments of the flow some triangle is turned over.
    """
    check_sphere(len(vertices), faces)
    V, F = vertices.detach().cpu().double(), faces.detach().cpu()
    if float(looks_outwards(*V[F].unbind(1)).sum()) < 0:
        F = F.flip(1)
    stretch, area = Stretch(V, F), vertex_areas(V, F).numpy()
    best, energy, age, fewest = None, math.inf, 0, len(F)
    for x in _flow(V, F):
        s = torch.from_numpy(balanced(x / np.linalg.norm(x, axis=1, keepdims=True), area))
        fewest = min(fewest, int((looks_outwards(*s[F].unbind(1)) <= 0).sum()))
        here = stretch.of_map(s)
        best, energy, age = (s, here, 0) if here < energy else (best, energy, age + 1)
        if best is not None and age > PATIENCE:
            break
    if best is None:
        raise InputError(
            f"At least {fewest} of {len(F)} triangles turn over when the mesh is laid over a sphere, as long thin "
            "parts shrink to points there. Give a mesh with better triangles (remesh it) or with shorter limbs."
        )
    return relaxed(stretch, best).to(vertices)


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
    """The vertices (n, 3) from step to step, each time moved to their centre of area and scaled to area 1."""
    faces = F.numpy()
    L = cotangent_stiffness(V.numpy(), faces)
    x = V.numpy()
    for _ in range(MOST_STEPS):
        area = vertex_areas(torch.from_numpy(x), F).numpy()
        x = (x - area @ x / area.sum()) / np.sqrt(area.sum())
        yield x
        M = mass_matrix(x, faces)
        x = splu(sp.csc_matrix(M + TIME_STEP * L)).solve(M @ x)
        # Limbs that have shrunk below rounding make the matrix singular: nothing good comes after that.
        if not (np.isfinite(x).all() and np.ptp(x, axis=0).all()):
            return


def balanced(s: Array, area: Array) -> Array:
    """Unit vectors s (n, 3) moved by Moebius maps of the sphere until sum_i area_i s_i = 0.

    The map with centre c, |c| < 1, is s -> (1 - |c|^2) (s + c) / |s + c|^2 + c. For small c it moves s by
    2 (c - (s.c) s), from which Newton's method has its c.
    """
    weight = area / area.sum()
    for _ in range(100):
        mean = weight @ s
        if np.linalg.norm(mean) < CENTRED:
            break
        jacobian = 2 * (np.eye(3) - (s * weight[:, None]).T @ s)
        c = -np.linalg.solve(jacobian, mean)
        c *= min(1.0, 0.5 / np.linalg.norm(c))
        away = s + c
        s = (1 - c @ c) * away / (away * away).sum(1, keepdims=True) + c
        s = s / np.linalg.norm(s, axis=1, keepdims=True)
    return s
