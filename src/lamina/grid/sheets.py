"""Which unknowns the cut cells have: one copy of a cell's corners for each sheet of surface in it.

An element is a cell together with one connected sheet of the surface inside it. Two elements in neighbouring
cells share the corners of their common face only if their sheet crosses that face; so sheets that pass
through one cell without touching stay independent, however close they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lamina.geometry.basis import BASES
from lamina.linear.graph import components, first_of_each, numbered

Glue = tuple[Tensor, Tensor, Tensor]  # a (g,), b (g,), axis (g,)


@dataclass(frozen=True)
class Elements:
    """Cut elements and how they are glued; from that, their unknowns.

    Corner number c of a cell lies at OCTANTS[c]. Glue (a, b, axis): the sheet of element a goes on into
    element b of the next cell along the axis. The first `active` elements have unknowns; those after them,
    slivers that a neighbour has absorbed, are there for the glue only.
    """

    cell: Tensor  # (e, 3) int64
    glue: Glue
    active: int
    known_component: Tensor | None = None  # where it is known already, from a finer lattice

    @classmethod
    def filling(cls, cell: Tensor, component: Tensor | None = None) -> tuple[Elements, Tensor]:
        """One element for each distinct cell (n, 3), of each component (n,) where given, glued to every neighbour.

        Returns the elements and the one (n,) that each of the cells is.
        """
        low = cell.amin(0)
        nx, ny, nz = (cell.amax(0) - low + 2).tolist()  # one to spare: the last of a row has no next one
        stride = torch.tensor([ny * nz, nz, 1], device=cell.device)
        key = ((cell - low) * stride).sum(1)
        if component is not None:
            key = key + component * (nx * ny * nz)
        key, place = torch.unique(key, return_inverse=True)
        a, b, axes = [], [], []
        for axis in range(3):
            at = torch.searchsorted(key, key + stride[axis]).clamp_(max=len(key) - 1)
            here = (key[at] == key + stride[axis]).nonzero()[:, 0]
            a.append(here)
            b.append(at[here])
            axes.append(torch.full_like(here, axis))
        first = first_of_each(place, len(key))
        known = None if component is None else component[first]
        return cls(cell[first], (torch.cat(a), torch.cat(b), torch.cat(axes)), len(key), known), place

    @cached_property
    def component(self) -> Tensor:
        """Component (e,) int64: connected through the glue."""
        if self.known_component is not None:
            return self.known_component
        return components(len(self.cell), self.glue[0], self.glue[1])

    @cached_property
    def unknown(self) -> Tensor:
        """Number (active, 8) int64 of the unknown at each corner."""
        return self.numbering(1)

    def numbering(self, degree: int) -> Tensor:
        """Number (active, (degree + 1)^3) int64 of the unknown at each node of functions of this degree."""
        a, b, axis = self.glue
        basis = BASES[degree]
        far, near = (face.to(self.cell.device) for face in basis.faces)
        left, right = a[:, None] * basis.count + far[axis], b[:, None] * basis.count + near[axis]
        unknown = components(basis.count * len(self.cell), left.reshape(-1), right.reshape(-1))
        unknown = unknown.reshape(-1, basis.count)
        return unknown if self.active == len(self.cell) else numbered(unknown.numel(), unknown[: self.active])

    @cached_property
    def unknowns(self) -> int:
        return int(self.unknown.max()) + 1

    def component_of(self, unknown: Tensor) -> Tensor:
        """Component of each unknown, given the unknowns (active, k) of the elements."""
        label = torch.empty(int(unknown.max()) + 1, dtype=torch.int64, device=self.cell.device)
        label[unknown.reshape(-1)] = self.component[: self.active].repeat_interleave(unknown.shape[1])
        return label

    def absorbed(self, area: Tensor, least: float) -> tuple[Elements, Tensor]:
        """Elements with less than `least` of area (e,) give their surface to a neighbour.

        A neighbour's functions are continued into the sliver, whose own corners, with next to no surface to
        hold them, would spoil the conditioning (the aggregation of Badia, Verdugo and Martin 2018). Returns the
        elements, reordered, and the one (e,) that holds the surface of each old one.
        """
        a, b, axis = self.glue
        e = torch.arange(len(area), device=area.device)
        small, large = torch.cat([a, b]), torch.cat([b, a])
        use = (area[small] < least) & (area[large] >= least)
        small, large = small[use], large[use]
        widest = torch.zeros_like(area).scatter_reduce_(0, small, area[large], "amax")
        use = area[large] == widest[small]
        host = e.scatter_reduce(0, small[use], large[use], "amin", include_self=False)
        # What goes on beyond a sliver must share corners with its host, or it would come loose.
        while True:
            loose = (self.cell[host[a]] - self.cell[host[b]]).abs().amax(1) > 1
            if not bool(loose.any()):
                break
            back = torch.cat([a[loose], b[loose]])
            host[back] = back
        order, place = _first(host == e)
        return Elements(self.cell[order], (place[a], place[b], axis), int((host == e).sum())), place[host]

    def without_copies(self) -> tuple[Elements, Tensor]:
        """One element for each cell, whatever sheets are in it, glued to every neighbour; to measure by."""
        return Elements.filling(self.cell)

    def coarsened(self) -> tuple[Elements, Tensor]:
        """The elements of the lattice of twice the spacing, and the one (e,) that each element lies in.

        Elements of one coarse cell that are glued to each other become one.
        """
        a, b, axis = self.glue
        cell = torch.div(self.cell, 2, rounding_mode="floor")
        inside = (cell.index_select(0, a) == cell.index_select(0, b)).all(1)
        joined, across = inside.nonzero()[:, 0], (~inside).nonzero()[:, 0]
        parent = components(len(cell), a.index_select(0, joined), b.index_select(0, joined))
        count = int(parent.max()) + 1
        coarse_cell = torch.empty(count, 3, dtype=torch.int64, device=cell.device)
        coarse_cell[parent] = cell
        component = torch.empty(count, dtype=torch.int64, device=cell.device)
        component[parent] = self.component
        active = torch.zeros(count, dtype=torch.bool, device=cell.device)
        active[parent[: self.active]] = True
        order, place = _first(active)
        parent = place[parent]
        a, b = (parent.index_select(0, end.index_select(0, across)) for end in (a, b))
        glue = distinct_glue(a, b, axis.index_select(0, across), count)
        return Elements(coarse_cell[order], glue, int(active.sum()), component[order]), parent


def _first(which: Tensor) -> tuple[Tensor, Tensor]:
    """The order that puts the true ones first, and the new place of each."""
    order = torch.argsort((~which).to(torch.uint8), stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return order, place


def distinct_glue(a: Tensor, b: Tensor, axis: Tensor, count: int) -> Glue:
    """Each glue between `count` elements once."""
    key = torch.unique((a * count + b) * 3 + axis)
    pair = torch.div(key, 3, rounding_mode="floor")
    return torch.div(pair, count, rounding_mode="floor"), pair % count, key % 3
