"""The rows of GINO: trained apart, on a GPU (experiments/furniture/train_gino.py), and read from its results."""

from __future__ import annotations

from lamina.reproduce.base import Row


def gino_rows(table: str) -> list[Row]:
    return []
