"""GINO for the tables of furniture and of frequencies: trained on the Spike, and on the evaluation shapes themselves.

    python experiments/furniture/train_gino.py train --device cuda     # trains and measures networks side by side

Reads carry/gino/examples.npz (prepare_gino.py) and nothing else, needs torch, numpy, scipy, lamina and neuraloperator,
and writes gino.json (figures, machine, versions, date) and gino_predictions.npz to --out. One network for each w and
training set:
  spike       the Spike in random rotations, f being fixed in space;
  single      the Spike as it stands, once (the paper does not say whether copies were turned);
  overfitted  the five evaluation shapes, which are the test as well.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prepare_gino import EXAMPLES, FREQUENCIES, SHAPES, field

from lamina import metrics
from lamina.paper.baselines.gino import GINO, GINOConfig, Shape, save_gino
from lamina.paper.baselines.gino_training import Example, train_gino
from lamina.paper.tables.provenance import plain
from lamina.paper.tables.result_files import circumstances

HERE = Path(__file__).resolve().parent
SETS = ("spike", "single", "overfitted")
NETWORKS = tuple(f"{kind}-{w}" for w in FREQUENCIES for kind in SETS)
NOTE = (
    "The shapes stand in for the paper's five ShapeNet shapes, which are not public, and so the columns A to E are not "
    "the paper's. That its frequency table has shape A as its fixed shape, and its furniture table w = 1, is inferred "
    "from their common entries. The paper gives no size of the network, radius, grid, training set or scaling of "
    "shapes, and trains for 8 hours; networks here stop after the seconds stated. What a network trained on one "
    "shape says of others is extrapolation: it depends on all of these, and on the seed. The overfitted figures "
    "measure how long one is willing to train. 'zero' is the NRMSE of the answer u = 0."
)


def furniture(data: Any, w: int) -> dict[str, Example]:
    made = {}
    for letter in SHAPES:
        points = data[f"{letter}_points"]
        made[letter] = _example(
            points, data[f"{letter}_areas"], w, data[f"{letter}_u"][FREQUENCIES.index(w)], data[f"{letter}_distance"]
        )
    return made


def spikes(data: Any, w: int, which: list[int]) -> list[Example]:
    points, areas, R = data["spike_points"], data["spike_areas"], data["spike_rotations"]
    i = FREQUENCIES.index(w)
    u = data["spike_u"][i, which].astype(np.float64) * data["spike_largest"][i]
    distance = data["spike_distance"][which]
    return [
        _example(points @ R[k].T.astype(np.float64), areas, w, u[j], distance[j].astype(np.float32))
        for j, k in enumerate(which)
    ]


def _example(points: np.ndarray, areas: np.ndarray, w: int, u: np.ndarray, distance: np.ndarray) -> Example:
    f = field(points.astype(np.float64), w)
    return Example(*(torch.from_numpy(np.asarray(a, dtype=np.float32)) for a in (points, areas, f, u, distance)))


@torch.no_grad()
def measure(gino: GINO, example: Example, device: str, vertices: int | None = None) -> tuple[float, np.ndarray]:
    """NRMSE on an example, at its first points if not at all, and what the network says there."""
    points, areas, f, distance = (t.to(device) for t in (example.points, example.areas, example.f, example.distance))
    u = gino(Shape.build(points, areas, distance, gino.config), f).cpu()[:vertices]
    return metrics.errors(u, example.u[:vertices], remove_mean=True).nrmse, u.numpy()


def zero(example: Example, vertices: int | None = None) -> float:
    """NRMSE of the answer u = 0."""
    u = example.u[:vertices]
    return metrics.errors(torch.zeros_like(u), u, remove_mean=True).nrmse


def train_one(arguments: argparse.Namespace) -> None:
    """Train and measure one network; figures and predictions go to files of its name in --out."""
    torch.set_num_threads(arguments.threads)
    torch.set_float32_matmul_precision("high")
    data = np.load(arguments.examples, allow_pickle=False)
    kind, w = arguments.network.split("-")
    shapes = furniture(data, int(w))
    rotated = json.loads(str(data["facts"]))["spike"]["rotations"]
    held_out = spikes(data, int(w), list(range(1 + rotated, len(data["spike_rotations"]))))
    training = {
        "spike": lambda: spikes(data, int(w), list(range(1, 1 + rotated))),
        "single": lambda: spikes(data, int(w), [0]),
        "overfitted": lambda: list(shapes.values()),
    }[kind]()
    config = GINOConfig(**json.loads(arguments.config))
    log: list[list[float]] = []
    last: list[float] = []
    start = time.perf_counter()

    def report(step: int, figures: dict[str, float]) -> None:
        last[:] = [step, round(figures["seconds"], 2), float(f"{figures['loss']:.4g}")]
        if not log or last[1] >= log[-1][1] + arguments.seconds / 20:
            log.append(list(last))

    gino = train_gino(
        training,
        config,
        seconds=arguments.seconds,
        steps=arguments.steps,
        rate=arguments.rate,
        seed=arguments.seed,
        device=arguments.device,
        report=report,
    )
    seconds = time.perf_counter() - start
    vertices = {letter: int(data[f"{letter}_vertices"]) for letter in SHAPES}  # other points were added to see f
    found = {letter: measure(gino, shapes[letter], arguments.device, vertices[letter]) for letter in SHAPES}
    some = training[:: max(1, len(training) // 16)][:16]
    figures: dict[str, Any] = {
        "training_set": kind,
        "frequency": int(w),
        "examples": len(training),
        "parameters": gino.parameter_count,
        "steps": last[0],
        "seconds": round(seconds, 1),
        "seed": arguments.seed,
        "rate": arguments.rate,
        "nrmse": {letter: value for letter, (value, _) in found.items()},
        "zero": {k: zero(shapes[k], vertices[k]) for k in SHAPES},
        "nrmse_training": [measure(gino, example, arguments.device)[0] for example in some],
        "log": {"columns": ["step", "seconds", "relative squared error"], "rows": [*log, last]},
    }
    if kind != "overfitted":
        figures["nrmse_held_out_rotations"] = [measure(gino, example, arguments.device)[0] for example in held_out]
        figures["zero_held_out_rotations"] = [zero(example) for example in held_out]
    if arguments.device == "cuda":
        figures["gpu_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    np.savez(arguments.out / f"{arguments.network}.npz", **{k: u.astype(np.float32) for k, (_, u) in found.items()})
    if arguments.weights:
        save_gino(arguments.weights / f"{arguments.network}.safetensors", gino, trained_on=kind, frequency=int(w))
    (arguments.out / f"{arguments.network}.json").write_text(json.dumps(figures))


def smoke(arguments: argparse.Namespace) -> None:
    """A few steps of the real thing on each kind of data, with the time and memory of a step."""
    torch.set_float32_matmul_precision("high")
    data = np.load(arguments.examples, allow_pickle=False)
    config = GINOConfig(**json.loads(arguments.config))
    for name, examples in (("spike", spikes(data, 20, [0, 1])), ("B", [furniture(data, 20)["B"]])):
        clock: list[tuple[float, float]] = []
        gino = train_gino(
            examples, config, steps=arguments.steps or 100, rate=arguments.rate, device=arguments.device,
            report=lambda step, figures, clock=clock: clock.append((step, figures["seconds"])),
        )  # fmt: skip
        nrmse, _ = measure(gino, examples[0], arguments.device)
        (s0, t0), (s1, t1) = clock[0] if len(clock) > 1 else (0, 0.0), clock[-1]
        memory = torch.cuda.max_memory_allocated() / 1e9 if arguments.device == "cuda" else 0
        print(
            f"{name}: {gino.parameter_count} parameters, {1e3 * (t1 - t0) / (s1 - s0):.1f} ms a step, "
            f"{memory:.1f} GB, NRMSE {nrmse:.3f} after {s1} steps",
            flush=True,
        )


def train(arguments: argparse.Namespace) -> None:
    """The smoke test, then a process for each network, all at once; what came of those that ended well in one file."""
    start = time.perf_counter()
    arguments.out.mkdir(parents=True, exist_ok=True)  # now rather than after the training
    passed_on = [f"--{k}={getattr(arguments, k)}" for k in ("examples", "device", "config", "rate", "seed", "threads")]
    me = [sys.executable, str(Path(__file__).resolve())]
    if arguments.smoke:
        subprocess.run([*me, "smoke", *passed_on, f"--steps={arguments.smoke}"], check=True, timeout=120)
    with tempfile.TemporaryDirectory() as folder:
        ended = train_all(arguments, me, passed_on, Path(folder), start)
        collect(arguments, Path(folder), ended)


def train_all(
    arguments: argparse.Namespace, me: list[str], passed_on: list[str], work: Path, start: float
) -> dict[str, int]:
    """Exit status by network; figures and predictions of those that ended well are in `work`."""
    passed_on = [*passed_on, f"--seconds={arguments.seconds}", f"--out={work}"]
    passed_on += [f"--weights={arguments.weights}"] if arguments.weights else []
    passed_on += [f"--steps={arguments.steps}"] if arguments.steps else []
    waiting = list(arguments.networks)
    running: dict[str, subprocess.Popen[bytes]] = {}
    ended: dict[str, int] = {}
    began: dict[str, float] = {}
    while waiting or running:
        while waiting and len(running) < arguments.processes:
            name = waiting.pop(0)
            running[name] = subprocess.Popen([*me, "one", f"--network={name}", *passed_on])
            began[name] = time.perf_counter()
        time.sleep(0.5)
        for name, process in list(running.items()):
            if process.poll() is None and time.perf_counter() - began[name] > arguments.seconds + arguments.grace:
                process.kill()
                process.wait()
            if process.poll() is not None:
                ended[name] = running.pop(name).returncode
                print(f"{name} ended with {ended[name]} at {time.perf_counter() - start:.0f} s", flush=True)
    return ended


def collect(arguments: argparse.Namespace, work: Path, ended: dict[str, int]) -> None:
    data = np.load(arguments.examples, allow_pickle=False)
    networks, predictions = {}, {}
    for name, status in ended.items():
        if status == 0:
            networks[name] = json.loads((work / f"{name}.json").read_text())
            with np.load(work / f"{name}.npz") as found:
                predictions |= {f"{name}_{letter}": found[letter] for letter in SHAPES}
            shown = {k: f"{v:.2e}" for k, v in networks[name]["nrmse"].items()}
            print(name, networks[name]["steps"], "steps,", f"{np.mean(networks[name]['nrmse_training']):.2e}", shown)
    np.savez_compressed(arguments.out / "gino_predictions.npz", **predictions)
    figures = {
        "note": NOTE,
        "config": {**vars(GINOConfig(**json.loads(arguments.config)))},
        "processes_at_once": min(arguments.processes, len(ended)),
        "seconds_each": arguments.seconds,
        "shapes": SHAPES,
        "examples": json.loads(str(data["facts"])),
        "networks": networks,
        "failed": [name for name, status in ended.items() if status != 0],
    }
    command = shlex.join(["python", "experiments/furniture/train_gino.py", "train", *_without_paths(sys.argv[2:])])
    document = {"benchmark": "gino", **circumstances(command), "figures": figures}
    (arguments.out / "gino.json").write_text(json.dumps(plain(document), indent=1) + "\n")
    if figures["failed"]:
        sys.exit(1)


def _without_paths(given: list[str]) -> list[str]:
    """Options but those that name a place on one machine."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("--out", "--examples", "--weights"):
        parser.add_argument(option)
    return parser.parse_known_args(given)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("smoke", "train", "one"))
    parser.add_argument("--examples", type=Path, default=EXAMPLES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="*", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--network", choices=NETWORKS, help="that `one` trains")
    parser.add_argument("--seconds", type=float, default=330.0, help="of training, for each network")
    parser.add_argument("--grace", type=float, default=90.0, help="seconds more before a network is given up")
    parser.add_argument("--steps", type=int, help="end after so many, if seconds are not over before")
    parser.add_argument("--processes", type=int, default=9, help="networks trained at once")
    parser.add_argument("--threads", type=int, default=1, help="of each")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--config", default="{}", help="what differs from GINOConfig(), as JSON")
    parser.add_argument("--smoke", type=int, default=100, help="steps of the test before, 0 for none")
    parser.add_argument("--weights", type=Path, help="folder to keep them in, 76 MB a network; needs safetensors")
    arguments = parser.parse_args()
    {"smoke": smoke, "train": train, "one": train_one}[arguments.part](arguments)


if __name__ == "__main__":
    main()
