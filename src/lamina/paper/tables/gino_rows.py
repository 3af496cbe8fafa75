"""The rows of GINO. It is trained separately, on a GPU (experiments/furniture/train_gino.py)."""

from __future__ import annotations

import json

from lamina.paper.tables.table import Row, Setting

GINO_LABELS = {"spike": "GINO, trained on the Spike", "overfitted": "GINO, trained on these shapes"}


def gino_rows(setting: Setting, table: str) -> list[Row]:
    """table: "furniture", cases A to E at frequency 1, or "frequency", shape A at three."""
    path = None if setting.folder is None else setting.folder / "furniture" / "gino.json"
    if setting.quick or path is None or not path.exists():
        return []
    made = []
    for network, found in json.loads(path.read_text())["figures"]["networks"].items():
        kind, frequency = network.split("-")
        for letter, nrmse in found["nrmse"].items():
            row = {"method": GINO_LABELS[kind], "nrmse": nrmse, "nrmse_of_zero": found["zero"][letter]}
            if table == "furniture" and frequency == "1":
                made.append({**row, "case": letter})
            if table == "frequency" and letter == "A":
                made.append({**row, "case": f"w = {frequency}"})
    return made
