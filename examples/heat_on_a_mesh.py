"""Heat on a mesh: from a file to a page, an animation and a picture.

    python examples/heat_on_a_mesh.py [FOLDER] [FILE]

FILE is any mesh, OBJ, PLY, STL, ...; without one an OBJ of a torus is written first, to have something to read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import lamina


def write_obj(path: Path) -> Path:
    torus = lamina.Torus(1.0, 0.4)
    assert torus.faces is not None
    lines = [f"v {x:.6f} {y:.6f} {z:.6f}" for x, y, z in torus.points.tolist()]
    lines += [f"f {a} {b} {c}" for a, b, c in (torus.faces + 1).tolist()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def main(folder: Path, file: Path | None = None) -> dict[str, float]:
    surface = lamina.load(file or write_obj(folder / "torus.obj"))
    print(f"{surface.name}: {len(surface.points)} vertices, area {float(surface.areas.sum()):.4g}")
    for note in surface.notes:
        print("  note:", note)

    # The grid and its operators are built once, and serve every initial state and every right-hand side.
    domain = lamina.Domain(surface)
    print(domain)

    # A hot half, which diffuses; times are in units of length squared.
    size = float((surface.bounds[1] - surface.bounds[0]).max())
    middle = surface.bounds.mean(0)
    u = lamina.heat(
        domain,
        lambda x: torch.sigmoid(40 * (x[:, 0] - middle[0]) / size),
        time=0.02 * size**2,
        frames=11,
        accuracy=1e-3,
    )

    # Heat is conserved, and the hottest place cools down.
    heat_at = [float((surface.areas * state).sum()) for state in u.snapshots]
    figures = {
        "drift": abs(heat_at[-1] - heat_at[0]) / heat_at[0],
        "hottest_first": float(u.snapshots[0].max()),
        "hottest_last": float(u.values.max()),
    }
    print(figures)

    u.save(folder / "heat.ply")
    u.plot(folder / "heat.png", size=(480, 480))
    u.animate(folder / "heat.gif", size=(240, 240))
    u.save(folder / "heat.html")
    print(f"Look at it: lamina view {folder / 'heat.html'}")
    return figures


if __name__ == "__main__":
    arguments = [Path(word) for word in sys.argv[1:]]
    main(*(arguments or [Path("example-output")]))
