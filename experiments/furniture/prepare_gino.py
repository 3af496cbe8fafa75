"""The problems that GINO is trained on, solved by FEM.

    python experiments/furniture/prepare_gino.py --data FOLDER

Lap u = sin(w x) sin(w y) sin(w z), w = 1, 10, 20, on the five shapes of the table, centred and scaled to a longest
half-extent of 1, and on the Spike in random rotations, scaled to a radius of 1 so that it can be turned. Writes
carry/gino/examples.npz, all that train_gino.py needs.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial.transform import Rotation

import lamina
from lamina.learn.signed_distance import signed_distance_target
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.baselines.gino import GINOConfig, signed_distances
from lamina.paper.baselines.long_edges import split_long_edges
from lamina.paper.baselines.reference import reference_poisson
from lamina.paper.tables.published_numbers import STAND_INS as SHAPES
from lamina.surfaces.spherical_map import spike

EXAMPLES = Path(__file__).resolve().parents[2] / "carry" / "gino" / "examples.npz"
FREQUENCIES = (1, 10, 20)
SETS = ("spike", "single", "overfitted")
NETWORKS = tuple(f"{kind}-{w}" for w in FREQUENCIES for kind in SETS)
LONGEST = 0.07  # edge of a shape, about the spacing of the grid
LEVEL, FINER = 5, (6, 7)  # of the icosphere: that the network sees, and those that the Spike is solved on


def field(x: np.ndarray, w: float) -> np.ndarray:
    return np.prod(np.sin(w * x), axis=-1)


def prepare(arguments: argparse.Namespace) -> None:
    config = GINOConfig()
    arrays: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "seed": arguments.seed}
    facts["references"] = {}
    for letter, file in SHAPES.items():
        facts["references"][letter] = add_shape(arrays, letter, arguments.data / file, config, arguments)
        print(letter, json.dumps(facts["references"][letter]), flush=True)
    if arguments.spike_from:
        with np.load(arguments.spike_from, allow_pickle=False) as before:
            arrays |= {key: before[key] for key in before.files if key.startswith("spike_")}
            facts["spike"] = json.loads(str(before["facts"]))["spike"]
    else:
        facts["spike"] = add_spike(arrays, config, arguments)
    arrays["facts"] = np.array(json.dumps(facts))
    arguments.examples.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.examples, **arrays)
    print(arguments.examples.name, round(arguments.examples.stat().st_size / 2**20, 1), "MiB")


def add_shape(
    arrays: dict[str, np.ndarray], letter: str, path: Path, config: GINOConfig, arguments: argparse.Namespace
) -> dict[str, Any]:
    loaded = lamina.load(path)
    assert loaded.faces is not None
    low, high = loaded.bounds
    # Large flat triangles would be holes in the cloud of points that the network sees.
    V, F = split_long_edges((loaded.points - (low + high) / 2) / ((high - low).max() / 2), loaded.faces, LONGEST)
    surface = lamina.Mesh(V, F)
    solved, facts = [], {"file": path.name, "vertices": len(loaded.points), "points": len(V)}
    for w in FREQUENCIES:
        reference = reference_poisson(
            V,
            F,
            lambda x, w=w: torch.sin(w * x).prod(1),
            tolerance=1e-4,
            max_vertices=arguments.max_vertices,
            solver=arguments.solver,
        )
        solved.append(reference.values)
        facts[f"w = {w}"] = {"change": reference.change, "vertices": reference.vertices, "ratio": reference.ratio}
    arrays[f"{letter}_vertices"] = np.array(len(loaded.points))
    arrays[f"{letter}_points"] = V.astype(np.float32)
    arrays[f"{letter}_areas"] = surface.areas.numpy().astype(np.float32)
    arrays[f"{letter}_u"] = np.stack(solved).astype(np.float32)
    arrays[f"{letter}_distance"] = signed_distances(surface, config).numpy().astype(np.float32)
    return facts


def add_spike(arrays: dict[str, np.ndarray], config: GINOConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """The Spike on three nested icospheres: u = u_7 + (u_7 - u_6) / 3 at the vertices of the coarsest."""
    shown = spike(LEVEL)
    radius = float(spike(FINER[-1]).points.norm(dim=1).max())
    meshes = [spike(level) for level in FINER]
    vertices = [m.points.numpy() / radius for m in meshes]
    solvers = []
    for v, m in zip(vertices, meshes, strict=True):
        assert m.faces is not None
        solvers.append(SurfaceFEM(v, m.faces.numpy(), solver=arguments.solver))
    rotations = Rotation.random(arguments.rotations + arguments.held_out, rng=np.random.default_rng(arguments.seed))
    R = np.concatenate([np.eye(3)[None], rotations.as_matrix()])  # the first: as it stands
    count = len(shown.points)
    u, change = np.zeros((len(FREQUENCIES), len(R), count)), []
    for i, w in enumerate(FREQUENCIES):
        for j, turn in enumerate(R):
            coarse, fine = (s.poisson(field(v @ turn.T, w))[:count] for s, v in zip(solvers, vertices, strict=True))
            u[i, j] = fine + (fine - coarse) / 3
            change.append(float(np.sqrt(np.mean((fine - coarse) ** 2)) / np.ptp(fine)) / 3)
        print("spike, w =", w, "extrapolated by", max(change[-len(R) :]), "of the range", flush=True)
    assert shown.faces is not None
    target = signed_distance_target(lamina.Mesh(shown.points / radius, shown.faces))
    distance = [signed_distances(target, config, torch.from_numpy(turn)).numpy() for turn in R]
    largest = np.abs(u).max((1, 2))
    arrays["spike_points"] = (shown.points.numpy() / radius).astype(np.float32)
    arrays["spike_areas"] = shown.areas.numpy().astype(np.float32)
    arrays["spike_rotations"] = R
    arrays["spike_largest"] = largest
    # Half precision keeps three digits, more than a network learns: what travels to the GPU halves.
    arrays["spike_u"] = (u / largest[:, None, None]).astype(np.float16)
    arrays["spike_distance"] = np.stack(distance).astype(np.float16)
    return {
        "radius before scaling": radius,
        "points": count,
        "rotations": arguments.rotations,
        "held out": arguments.held_out,
        "last change": dict(zip(map(str, FREQUENCIES), map(max, np.split(np.array(change), 3)), strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the evaluation shapes")
    parser.add_argument("--examples", type=Path, default=EXAMPLES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rotations", type=int, default=144, help="of the Spike, to train on")
    parser.add_argument("--held-out", type=int, default=16, help="of the Spike, to measure on")
    parser.add_argument("--spike-from", type=Path, help="examples of an earlier run whose Spike is kept")
    parser.add_argument("--max-vertices", type=int, default=600_000, help="of the finest reference mesh")
    parser.add_argument("--solver", default="cholespy", help="of lamina.paper.baselines.fem")
    prepare(parser.parse_args())


if __name__ == "__main__":
    main()
