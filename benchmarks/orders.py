"""Where order 3 pays and where order 2 does: both at equal unknowns on shapes of every kind.

    LAMINA_DATA=FOLDER python benchmarks/orders.py [--only NAME ...] [--nodes 10000 50000 200000] [--orders 2 3 4]
        [--jobs 8] [--device cuda]

Laplacian(u) = sin(2x) cos(1.5y) + z on shapes scaled to half the longest side. The reference has REFERENCE unknowns and
order 3; that of order 2 is beside it, so that one sees how well the two agree. NRMSE at domain.points. Order 4 is the
coupled scheme. Each solve is a process of its own with one thread. "spike SIREN" and the like are networks that
`lamina fit` fits first, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import BENCHMARKS, domain_of, parser, record

DATA = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
FITTED = Path(tempfile.gettempdir()) / "lamina-fitted"
REFERENCE = 400_000
Row = dict[str, Any]

# Where the rule of order="auto" was chosen, and where it is judged.
CHOSEN_ON = ("sphere", "torus", "three balls", "ELU bunny", "gear", "hammer", "spot", "fandisk", "noisy sphere")
JUDGED_ON = (
    "ellipsoid", "spike", "starfruit", "mug", "round cross", "bust", "alien", "man", "DeepSDF camera", "armadillo",
    "anchor", "three holes", "hand", "knot", "torus cloud", "noisy torus", "bunny cloud", "unicorn",
    "spike SIREN", "spike SNS", "starfruit SIREN", "starfruit SNS",
)  # fmt: skip


def surface(name: str) -> Any:
    import torch

    import lamina
    from lamina.surfaces.sphere_maps import sphere_map

    files = {
        "three balls": "neural/siren_threeballs.npz", "mug": "neural/siren_mug.npz",
        "ELU bunny": "neural/mlp_elu_bunny_sdf.npz", "hammer": "neural/mlp_relu_hammer_occ.npz",
        "gear": "neural/thingi10k_723892_gear_sdf.npz", "bust": "neural/thingi10k_75652_bust_sdf.npz",
        "alien": "neural/thingi10k_60328_alien_sdf.npz", "man": "neural/thingi10k_81261_man_sdf.npz",
        "round cross": "neural/deepsdf_fbformat_roundcross", "DeepSDF camera": "neural/deepsdf_minimal",
        "spot": "meshes/spot.ply", "fandisk": "meshes/fandisk.ply", "armadillo": "meshes/armadillo.ply",
        "anchor": "meshes/anchor_dense.ply", "three holes": "meshes/threeholes.ply", "hand": "meshes/hand.ply",
        "knot": "meshes/knot.ply", "bunny cloud": "pointclouds/bunny_open3d.ply",
        "unicorn": "splats/unicorn_stuffy_sh0.ply",
    }  # fmt: skip
    if name in files:
        latent = {"round cross": 5, "DeepSDF camera": 1}.get(name)
        return lamina.load(DATA / files[name], **({} if latent is None else {"latent": latent}))
    if name.endswith((" SIREN", " SNS")):
        return lamina.load(fitted_file(name))
    if name in ("spike", "starfruit"):
        return sphere_map(name, 5)
    shape = lamina.Torus(1.0, 0.4) if "torus" in name else lamina.Ellipsoid(1, 0.8, 0.6)
    shape = lamina.Sphere() if "sphere" in name else shape
    if "cloud" not in name and "noisy" not in name:
        return shape
    feet = shape.sample(20_000, 0)
    noise = 0.005 * torch.randn(len(feet.points), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return lamina.PointCloud(feet.points + noise) if "noisy" in name else lamina.PointCloud(feet.points, feet.normals)


def fitted_file(name: str) -> Path:
    return FITTED / (name.replace(" ", "_") + ".safetensors")


def fit(name: str, device: str) -> None:
    """Fit the network called name, unless its file is there."""
    shape, kind = name.split()
    FITTED.mkdir(exist_ok=True)
    if not fitted_file(name).exists():
        lamina = "from lamina.cli import main; main()"
        asked = ["fit", kind.lower(), shape, "--out", str(fitted_file(name)), "--device", device]
        subprocess.run([sys.executable, "-c", lamina, *asked], check=True)


def one(name: str, order: str, nodes: int, device: str, out: str) -> None:
    """Solve in this process; values at domain.points into out.npy, the rest printed."""
    import numpy as np
    import torch

    import lamina
    from lamina.spaces.galerkin import roughness

    torch.set_num_threads(1)
    shape = surface(name)
    low, high = shape.bounds.detach().to(device)
    centre, half = (low + high) / 2, float((high - low).max()) / 2

    def f(x: torch.Tensor) -> torch.Tensor:
        y = (x - centre) / half
        return torch.sin(2 * y[:, 0]) * torch.cos(1.5 * y[:, 1]) + y[:, 2]

    start = time.perf_counter()
    scheme = {"auto": "auto", "4": "coupled"}.get(order, f"order {order}")
    options = {"order": 4} if order == "4" else {}
    domain = domain_of(scheme, shape, nodes=nodes, device=device, show_progress=False, **options)
    built = time.perf_counter() - start
    u = lamina.poisson(domain, f, tolerance=1e-8, show_progress=False)
    np.save(out, u.values.detach().cpu().numpy())
    areas = domain.surface.own_areas().detach().cpu().numpy() if order == "3" else None
    if areas is not None:
        np.save(out + ".areas.npy", areas)
    print(json.dumps({"name": name, "asked": order, "order": domain.order, "nodes": nodes, "unknowns": domain.unknowns,
                      "spacing": domain.spacing, "cycles": u.cycles, "build": built, "solve": u.seconds,
                      "reason": domain.order_reason, "roughness": roughness(domain.cut),
                      "warnings": [w[:120] for w in domain.warnings]}))  # fmt: skip


def run(job: tuple[str, str, int, str, str], longest: float, end: float) -> Row:
    name, order, nodes, device, out = job
    longest = min(longest, end - time.time())
    if longest <= 0:
        return {"name": name, "asked": order, "nodes": nodes, "failed": "not run"}
    command = [sys.executable, __file__, "--one", name, order, str(nodes), device, out]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=longest, env=environment)
    except subprocess.TimeoutExpired:
        return {"name": name, "asked": order, "nodes": nodes, "failed": f"more than {longest:g} s"}
    if done.returncode:
        return {"name": name, "asked": order, "nodes": nodes, "failed": done.stderr.strip()[-300:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    if "--one" in sys.argv:
        name, order, nodes, device, out = sys.argv[2:7]
        return one(name, order, int(nodes), device, out)
    import numpy as np

    options = parser(__doc__)
    options.add_argument("--only", nargs="+", default=[*CHOSEN_ON, *JUDGED_ON])
    options.add_argument("--nodes", nargs="+", type=int, default=[10_000, 50_000, 200_000])
    options.add_argument("--orders", nargs="+", default=["2", "3"])
    options.add_argument("--reference", type=int, default=REFERENCE)
    options.add_argument("--name", default="orders", help="of the results file")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--device", default="cpu")
    options.add_argument("--longest", type=float, default=500, help="seconds for one solve")
    options.add_argument("--deadline", type=float, default=7200, help="seconds for all of them")
    asked = options.parse_args()
    folder = Path(tempfile.mkdtemp())
    cases = [(o, n) for n in asked.nodes for o in asked.orders] + [("2", asked.reference), ("3", asked.reference)]
    networks = [name for name in asked.only if name.endswith((" SIREN", " SNS"))]
    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(lambda name: fit(name, asked.device), networks))
    jobs = [(name, o, n, asked.device, str(folder / f"{name}-{o}-{n}.npy")) for name in asked.only for o, n in cases]
    jobs.sort(key=lambda job: (asked.only.index(job[0]) // 4, -job[2]))  # the long ones of each few shapes first
    end = time.time() + asked.deadline
    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = list(pool.map(lambda job: run(job, asked.longest, end), jobs))
    found = {(r["name"], r["asked"], r["nodes"]): r for r in rows}
    for name in asked.only:

        def values(order: str, nodes: int, name: str = name) -> Any:
            return np.load(folder / f"{name}-{order}-{nodes}.npy")

        reference = found[name, "3", asked.reference]
        if "failed" in reference:
            print(name, "no reference:", reference["failed"], flush=True)
            continue
        exact = values("3", asked.reference)
        for order, nodes in cases:
            row = found[name, order, nodes]
            if "failed" not in row:
                error = values(order, nodes) - exact
                row["nrmse"] = float(np.std(error) / np.ptp(exact))
            shown = f"{row['nrmse']:.2e}" if "nrmse" in row else row["failed"]
            print(f"{name:15s} {order:4s} {nodes:7d} {row.get('unknowns', 0):7d} {shown} cycles {row.get('cycles')} "
                  f"build {row.get('build', 0):.1f} solve {row.get('solve', 0):.1f} {row.get('order')} "
                  f"{row.get('roughness')}", flush=True)  # fmt: skip
    record(asked.name, {"rows": rows, "chosen_on": CHOSEN_ON, "judged_on": JUDGED_ON}, asked.out)


if __name__ == "__main__":
    main()
