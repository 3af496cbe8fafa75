"""Makes the pictures of the documentation, docs/images/*.png:

    LAMINA_DATA=FOLDER python docs/pictures.py [NAME ...]

FOLDER holds meshes/spot.ply, splats/unicorn_stuffy_sh0.ply and neural/siren_mug.npz; the other pictures need no data,
and that of the viewer needs Chromium.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

import lamina
from lamina.view.camera import View
from lamina.view.render import render_png

IMAGES = Path(__file__).resolve().parent / "images"
DATA = Path(os.environ.get("LAMINA_DATA", "."))


def waves(x: Tensor) -> Tensor:
    return torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]) + x[:, 2]


def centred(surface: lamina.Surface) -> Callable[[Tensor], Tensor]:
    """waves on the surface as if it were of size 1."""
    low, high = surface.bounds
    middle, half = (low + high) / 2, (high - low).max() / 2
    return lambda x: waves((x - middle) / half)


def mesh() -> lamina.Solution:
    surface = lamina.load(DATA / "meshes" / "spot.ply")
    return lamina.poisson(lamina.Domain(surface), centred(surface))


def points() -> lamina.Solution:
    drawn = lamina.load(DATA / "meshes" / "spot.ply").sample(12000, 0).points
    noise = torch.randn(drawn.shape, generator=torch.Generator().manual_seed(1), dtype=drawn.dtype)
    surface = lamina.PointCloud(drawn + 0.003 * noise, name="spot, noisy points")
    return lamina.poisson(lamina.Domain(surface), centred(surface))


def splats() -> lamina.Solution:
    surface = lamina.load(DATA / "splats" / "unicorn_stuffy_sh0.ply")
    return lamina.poisson(lamina.Domain(surface), centred(surface))


def neural() -> lamina.Solution:
    surface = lamina.load(DATA / "neural" / "siren_mug.npz")
    return lamina.poisson(lamina.Domain(surface), centred(surface))


def implicit() -> lamina.Solution:
    def tangle(x: Tensor) -> Tensor:
        return (x**4 - 5 * x**2).sum(1) + 11.8

    surface = lamina.Implicit(tangle, [[-3.0] * 3, [3.0] * 3], name="tanglecube")
    return lamina.heat(lamina.Domain(surface), lambda x: torch.sin(3 * x).sum(1), 0.05, accuracy=1e-3)


def maps() -> lamina.Solution:
    domain = lamina.Domain(lamina.starfruit(), 0.05)
    return lamina.poisson(domain, lambda x: torch.sin(6 * x[:, 0]) + x[:, 2])


def viewer() -> None:
    """A screenshot of the viewer: heat from a grid of 0.1 beside that from one of 0.05, with isolines and a value."""
    from PIL import Image

    sys.path.insert(0, str(IMAGES.parent.parent / "tests"))
    from browser import Browser, find

    program = find()
    if program is None:
        sys.exit("The picture of the viewer needs Chromium.")
    fine, coarse = (
        lamina.heat(lamina.Domain(lamina.spike(), h), lambda x: torch.sin(6 * x).sum(1), 0.01, frames=5, accuracy=1e-3)
        for h in (0.05, 0.1)
    )
    tab = Browser(program, 1100, 620)
    with tempfile.TemporaryDirectory() as folder:
        tab.open(coarse.page(reference=fine, title="heat on the spike, spacing 0.1").save(Path(folder) / "viewer.html"))
        for key in ("3", "i", ".", "."):
            tab.press(key)
        tab.mouse("mouseMoved", 250, 330)
        tab.settle()
        tab.settle()
        Image.fromarray(tab.shot().astype("uint8")).save(IMAGES / "viewer.png", optimize=True)
    tab.close()


PICTURES: dict[str, Callable[[], lamina.Solution]] = {
    "mesh": mesh,
    "points": points,
    "splats": splats,
    "neural": neural,
    "implicit": implicit,
    "maps": maps,
}
VIEWS = {"mesh": View(azimuth=100), "points": View(azimuth=100), "splats": View(azimuth=-120, up="y")}


def main() -> None:
    for name in sys.argv[1:] or [*PICTURES, "viewer"]:
        start = perf_counter()
        if name == "viewer":
            viewer()
            continue
        u = PICTURES[name]()
        arrays = u._arrays()
        if name == "splats":  # whose y points down
            arrays |= {key: arrays[key] * [1, -1, -1] for key in ("points", "normals")}
        render_png(IMAGES / f"{name}.png", **arrays, size=(560, 560), view=VIEWS.get(name))
        print(f"{name:<10} {u.domain.unknowns:8d} unknowns  {perf_counter() - start:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
