"""Boundary conditions on rims for the coupled scheme, by ghost nodes beyond the rims (`ghosts.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.errors import InputError
from lamina.paper.coupled import Coupled
from lamina.paper.ghosts import GhostRule
from lamina.pde.boundary import KeptConditions, computed_once_if_steady, kinds_at, numbers_at, values_at
from lamina.pde.conditions import Condition
from lamina.pde.locations import evaluate_location, no_rim_message
from lamina.pde.problem import Problem
from lamina.spaces.scheme import VALUE


def _all_on_rims(domain: Domain, scheme: Coupled, conditions: list[Condition]) -> bool:
    """Whether all conditions hold on rims."""
    ghosts = scheme.levels[0].ghosts
    for number, c in enumerate(conditions):
        if c.test is not None:
            found = evaluate_location(c.test, domain.points if ghosts is None else ghosts.rim, c, number)
            if ghosts is None or found.dtype != torch.bool or not bool(found.any()):
                return False
        elif not isinstance(c.where, str | int):
            return False
    return True


def coupled_problem(domain: Domain, scheme: Coupled, conditions: list[Condition]) -> Problem | None:
    """The problem with rules for the ghost nodes; None if a condition holds elsewhere than on a rim."""
    if not _all_on_rims(domain, scheme, conditions):
        return None
    rules: list[GhostRule | None] = []
    finest = torch.zeros(0, dtype=torch.int64)
    determined = torch.zeros(scheme.component_count, dtype=torch.bool, device=domain.points.device)
    for level in scheme.levels:
        ghosts = level.ghosts
        if ghosts is None:
            rules.append(None)
            continue
        condition = numbers_at(domain, ghosts.rim, conditions, strict=not rules)
        kind, robin = kinds_at(domain, conditions, condition, ghosts.rim)
        if not rules:
            finest = condition
            determined[level.band.component[ghosts.rows[(kind == VALUE) | (robin > 0)]]] = True
        rules.append(GhostRule.from_conditions(ghosts, kind, robin, scheme.rim_order))
    ghosts = scheme.levels[0].ghosts
    if ghosts is None:
        raise InputError(no_rim_message(conditions[0], 0))
    new = scheme.with_rules(rules, determined)

    given = partial(values_at, domain, conditions, finest, ghosts.rim)
    load = computed_once_if_steady(lambda time: new.boundary_load(given(time)), conditions)
    domain = domain.with_scheme(cast(Any, new))
    kept = KeptConditions(conditions, partial(_fluxes_on_rims, domain, conditions), domain)
    return Problem(domain, new, load, lambda u: new.with_ghosts(u, given(0.0)), kept)


def _fluxes_on_rims(domain: Domain, conditions: list[Condition], u: Tensor, time: float) -> Tensor:
    """The flux (c,) that enters through each condition on rims.

    It is the flux that the condition gives. Where u is given, du/dn comes from the values on the rim and one and two
    cells inside it, to second order.
    """
    rim, h = domain.rim, domain.spacing
    assert rim is not None
    condition = numbers_at(domain, rim.points, conditions, strict=False)
    kind, robin = kinds_at(domain, conditions, condition, rim.points)
    at, inside, further = (domain.evaluate(u, rim.points - i * h * rim.outward) for i in range(3))
    flux = values_at(domain, conditions, condition, rim.points, time) - robin * at
    flux = torch.where(kind == VALUE, (3 * at - 4 * inside + further) / (2 * h), flux)
    conditioned = condition >= 0
    return u.new_zeros(len(conditions)).index_add_(0, condition[conditioned], (rim.weights * flux)[conditioned])
