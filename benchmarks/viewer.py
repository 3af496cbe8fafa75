"""The viewer at 200,000 vertices: seconds to read a solution, to write the page, to open it, and to draw a frame.

A headless Chromium draws without a GPU (SwiftShader), the slowest way there is. Opening counts from asking for the file
until a screenshot of it has been taken.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from common import best, parser, record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

LIMIT = 3.0  # seconds to write, and to open


def scenes(vertices: int) -> dict[str, Any]:
    """A wavy sphere of about that many vertices as a mesh and as points, with 1 and with 24 frames."""
    import numpy as np

    from lamina.view.scene import Scene

    i = np.arange(vertices)
    height = 1 - 2 * (i + 0.5) / vertices
    angle = np.pi * (3 - 5**0.5) * i
    across = np.sqrt(1 - height**2)
    normals = np.stack([across * np.cos(angle), across * np.sin(angle), height], 1)
    points = normals * (1 + 0.1 * np.sin(6 * normals[:, :1]) * np.sin(6 * normals[:, 1:2]))
    values = np.sin(8 * points[:, 0]) + points[:, 2]
    fading = np.stack([values * 0.9**k for k in range(24)])
    # The convex hull of points on a sphere is its triangulation.
    from scipy.spatial import ConvexHull

    faces = ConvexHull(normals).simplices
    times = tuple(k / 23 for k in range(24))
    return {
        "mesh": Scene("mesh", points, values[None], faces=faces, normals=normals),
        "points": Scene("points", points, values[None], normals=normals),
        "mesh, 24 frames": Scene("mesh over time", points, fading, times, faces, normals),
    }


def measure(scene: Any, tab: Any, folder: Path) -> dict[str, float]:
    from lamina.io.export import save
    from lamina.view.page import page
    from lamina.view.scene import read_scene

    save(folder / "solution.ply", scene.points, scene.values.T, faces=scene.faces, normals=scene.normals)
    start = perf_counter()
    scene = read_scene(folder / "solution.ply")
    read = perf_counter() - start
    start = perf_counter()
    path = page(scene).save(folder / "page.html")
    wrote = perf_counter() - start
    opened = tab.open(path)
    frame = tab.js(
        """(async () => {
          const v = window.lamina, gl = v.renderer.getContext(), start = performance.now();
          for (let i = 0; i < 5; i++) { v.turn(0.1, 0); v.draw(); gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE,
            new Uint8Array(4)); }
          return (performance.now() - start) / 5000;
        })()"""
    )
    if tab.problems:
        raise RuntimeError(f"the page complains: {tab.problems}")
    return {"read": read, "write": wrote, "open": opened, "frame": frame, "megabytes": path.stat().st_size / 1e6}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--vertices", type=int, default=200_000)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    from browser import Browser, find

    program = find()
    if program is None:
        sys.exit("There is no Chromium here; install it, or name it in LAMINA_CHROMIUM.")
    tab = Browser(program, 1280, 800)
    figures: dict[str, Any] = {"browser": tab.call("Browser.getVersion")["product"], "vertices": chosen.vertices}
    names = ("read", "write", "open", "frame", "megabytes")
    print(f"{'':<18}" + "".join(f"{name:>11}" for name in names) + f"   (best of {chosen.rounds}; bar {LIMIT} s)")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, scene in scenes(chosen.vertices).items():
                runs = [measure(scene, tab, Path(folder)) for _ in range(chosen.rounds)]
                worst = {f"worst_{key}": max(run[key] for run in runs) for key in ("write", "open")}
                row = best(runs) | worst
                figures[name] = row
                print(
                    f"{name:<18}"
                    + "".join(f"{row[key]:11.2f}" for key in names)
                    + f"   worst write {row['worst_write']:.2f}, open {row['worst_open']:.2f}"
                )
    finally:
        tab.close()
    print(record("viewer", figures, chosen.out))


if __name__ == "__main__":
    main()
