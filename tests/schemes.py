"""Domains by name, for tests that hold for lamina's own orders and for the baselines alike."""

from typing import Any

import lamina

ORDERS = {"trace": 2, "order 3": 3}


def of_scheme(scheme: str, surface: lamina.Surface, spacing: float | None = None, **options: Any) -> lamina.Domain:
    """"trace" and "order 3": functions on cut cells; other names: schemes of the baselines."""
    if scheme in ORDERS:
        return lamina.Domain(surface, spacing, **{"order": ORDERS[scheme]} | options)
    return lamina.paper.BandDomain(surface, spacing, scheme=scheme, **options)
