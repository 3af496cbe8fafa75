"""The unknowns of cut cells: one copy of the corners of a cell for each sheet of the surface in it.

An element is a cell together with one connected sheet of the surface inside it. Two elements in neighbouring cells
share the corners of their common face only if their sheet crosses that face. So sheets that pass through one cell
without touching are independent, however close they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lamina.geometry.basis import BASES
from lamina.linear.graph import components, first_of_each, numbered
from lamina.shapes import Int, shaped

Glue = tuple[Tensor, Tensor, Tensor]  # a (g,), b (g,), axis (g,)


@shaped
@dataclass(frozen=True)
class CutElements:
    """Elements, how they are glued, and their unknowns, which follow from that.

    Corner number c of a cell lies at OCTANTS[c]. Glue (a, b, axis): the sheet of element a continues in element b of
    the next cell along the axis. Only the first `active` elements have unknowns. Those after them are slivers that a
    neighbour has absorbed; they are kept for their glue.
    """

    cell: Int[Tensor, "e 3"]
    glue: Glue
    active: int
    known_component: Int[Tensor, " e"] | None = None  # if it is known already, from a finer lattice

    @classmethod
    def filling(cls, cell: Tensor, component: Tensor | None = None) -> tuple[CutElements, Tensor]:
        """One element for each distinct cell (n, 3), or each distinct pair of a cell and a component (n,), glued to all
        neighbours. Returns the elements and the element (n,) of each cell.
        """
        low = cell.amin(0)
        nx, ny, nz = (cell.amax(0) - low + 2).tolist()  # one more than needed: the last of a row has no next cell
        stride = torch.tensor([ny * nz, nz, 1], device=cell.device)
        key = ((cell - low) * stride).sum(1)
        if component is not None:
            key = key + component * (nx * ny * nz)
        key, element = torch.unique(key, return_inverse=True)
        a, b, axes = [], [], []
        for axis in range(3):
            at = torch.searchsorted(key, key + stride[axis]).clamp_(max=len(key) - 1)
            here = (key[at] == key + stride[axis]).nonzero()[:, 0]
            a.append(here)
            b.append(at[here])
            axes.append(torch.full_like(here, axis))
        first = first_of_each(element, len(key))
        known = None if component is None else component[first]
        return cls(cell[first], (torch.cat(a), torch.cat(b), torch.cat(axes)), len(key), known), element

    @cached_property
    def component(self) -> Tensor:
        """Component (e,) int64 of the graph whose edges are the glue."""
        if self.known_component is not None:
            return self.known_component
        return components(len(self.cell), self.glue[0], self.glue[1])

    @cached_property
    def unknown(self) -> Tensor:
        """The number (active, 8) int64 of the unknown at each corner."""
        return self.numbering(1)

    def numbering(self, degree: int) -> Tensor:
        """The number (active, (degree + 1)^3) int64 of the unknown at each node of functions of this degree."""
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
        """The component of each unknown, given the unknowns (active, k) of the elements."""
        label = torch.empty(int(unknown.max()) + 1, dtype=torch.int64, device=self.cell.device)
        label[unknown.reshape(-1)] = self.component[: self.active].repeat_interleave(unknown.shape[1])
        return label

    def absorbed(self, area: Tensor, least: float) -> tuple[CutElements, Tensor]:
        """The elements after those with an area (e,) of less than `least` have given their surface to a neighbour.

        The functions of the neighbour are continued into the sliver. The corners of the sliver itself would spoil the
        conditioning, because next to no surface determines their values (the aggregation of Badia, Verdugo and Martin
        2018). Returns the elements, reordered, and the element (e,) that now holds the surface of each old one.
        """
        a, b, axis = self.glue
        e = torch.arange(len(area), device=area.device)
        small, large = torch.cat([a, b]), torch.cat([b, a])
        use = (area[small] < least) & (area[large] >= least)
        small, large = small[use], large[use]
        widest = torch.zeros_like(area).scatter_reduce_(0, small, area[large], "amax")
        use = area[large] == widest[small]
        absorber = e.scatter_reduce(0, small[use], large[use], "amin", include_self=False)
        # The element beyond a sliver must share corners with the absorber of the sliver. Otherwise the surface would
        # come apart there, and the sliver is not absorbed.
        while True:
            loose = (self.cell[absorber[a]] - self.cell[absorber[b]]).abs().amax(1) > 1
            if not bool(loose.any()):
                break
            back = torch.cat([a[loose], b[loose]])
            absorber[back] = back
        order, number = _true_ones_first(absorber == e)
        active = int((absorber == e).sum())
        return CutElements(self.cell[order], (number[a], number[b], axis), active), number[absorber]

    def without_copies(self) -> tuple[CutElements, Tensor]:
        """One element for each cell, whatever sheets are in it, glued to all neighbours; for comparison."""
        return CutElements.filling(self.cell)

    def coarsened(self) -> tuple[CutElements, Tensor]:
        """The elements of the lattice of twice the spacing, and the coarse element (e,) that contains each element.

        Elements of one coarse cell that are glued to each other become one element.
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
        order, number = _true_ones_first(active)
        parent = number[parent]
        a, b = (parent.index_select(0, end.index_select(0, across)) for end in (a, b))
        glue = distinct_glue(a, b, axis.index_select(0, across), count)
        return CutElements(coarse_cell[order], glue, int(active.sum()), component[order]), parent


def _true_ones_first(which: Tensor) -> tuple[Tensor, Tensor]:
    """The order that puts the true ones first, and the new number of each."""
    order = torch.argsort((~which).to(torch.uint8), stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order), device=order.device)
    return order, number


def distinct_glue(a: Tensor, b: Tensor, axis: Tensor, count: int) -> Glue:
    """The glue between `count` elements without duplicates."""
    key = torch.unique((a * count + b) * 3 + axis)
    pair = torch.div(key, 3, rounding_mode="floor")
    return torch.div(pair, count, rounding_mode="floor"), pair % count, key % 3
