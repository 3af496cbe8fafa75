"""What gradients and channels cost: backward against forward, 64 channels against one.

    python benchmarks/layers.py [--parts backward shape channels table] [--device cuda]

Times are the best of several in one process. Memory is the peak of building the domain and solving, with and without
backward, each in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import BENCHMARKS, Stopwatch, child, domain_of, parser, peak_memory, record, write
from torch import Tensor

import lamina

NODES = 42_000
CHANNELS = 64


def problem(scheme: str, device: str) -> lamina.Domain:
    """The unit sphere with about 42,000 unknowns."""
    return domain_of(scheme, lamina.Sphere(), nodes=NODES, order=2, device=device)


def field(domain: lamina.Domain, count: int = 1) -> Tensor:
    x = domain.points
    waves = torch.arange(1, count + 1, device=x.device, dtype=x.dtype)
    f = torch.sin(x[:, :1] * (1 + waves / 16)) * x[:, 1:2] + x[:, 2:] * torch.cos(waves)
    return f if count > 1 else f[:, 0]


def fastest(function: Callable[[], Any], repeats: int, device: str) -> float:
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(repeats):
        watch = Stopwatch(device)
        function()
        times.append(watch.lap())
    return min(times)


def memory(device: str, what: str, scheme: str) -> float:
    """Bytes at the worst moment of a case, in a process of its own."""
    return float(child("layers.py", "--device", device, "--memory", what, "--scheme", scheme)["bytes"])


def remember(device: str, what: str, scheme: str) -> dict[str, float]:
    """One case: domain and solve, with or without backward, to f or to the shape."""
    with peak_memory(device) as found:
        if what.startswith("shape"):
            shape_problem(scheme, device, gradients=what.endswith("both"))
        else:
            domain = problem(scheme, device)
            f = field(domain).requires_grad_(what.endswith("both"))
            loss = lamina.poisson(domain, f).values.square().sum()
            if f.requires_grad:
                torch.autograd.grad(loss, f)
    return found


def backward_cost(scheme: str, device: str) -> dict[str, Any]:
    """A Poisson solve on a domain that is there, and its backward pass to f, the first and later ones."""
    domain = problem(scheme, device)
    f = field(domain).requires_grad_()
    lamina.poisson(domain, f.detach())  # what is made once
    values = lamina.poisson(domain, f).values
    watch = Stopwatch(device)
    torch.autograd.grad(values.square().sum(), f)
    first = watch.lap()

    def both() -> None:
        torch.autograd.grad(lamina.poisson(domain, f).values.square().sum(), f)

    forward = fastest(lambda: lamina.poisson(domain, f.detach()), 7, device)
    total = fastest(both, 7, device)
    alone, together = (memory(device, what, scheme) for what in ("rhs", "rhs-both"))
    return {
        "scheme": scheme,
        "unknowns": domain.unknowns,
        "forward_seconds": forward,
        "backward_seconds": total - forward,
        "ratio": (total - forward) / forward,
        "first_backward_seconds": first,
        "forward_bytes": alone,
        "both_bytes": together,
        "memory_ratio": together / alone,
    }


def shape_problem(scheme: str, device: str, gradients: bool) -> None:
    """From the parameters of an implicit ellipsoid to a solution, and back."""
    axes = torch.tensor([1.0, 0.9, 0.8], dtype=torch.float64, device=device, requires_grad=gradients)
    box = torch.tensor([[-1.5] * 3, [1.5] * 3], dtype=torch.float64, device=device)
    surface = lamina.Implicit(lambda x: (x / axes).square().sum(1).sqrt() - 1, box)
    domain = domain_of(scheme, surface, nodes=NODES, order=2, device=device)
    loss = lamina.poisson(domain, lambda x: x[:, 0] * x[:, 1]).values.square().sum()
    if gradients:
        torch.autograd.grad(loss, axes)


def shape_cost(scheme: str, device: str) -> dict[str, Any]:
    """The same with everything from sampling on counted in, against that without gradients."""
    forward, both = (fastest(lambda g=g: shape_problem(scheme, device, g), 3, device) for g in (False, True))
    alone, together = (memory(device, what, scheme) for what in ("shape", "shape-both"))
    return {
        "scheme": scheme,
        "forward_seconds": forward,
        "both_seconds": both,
        "ratio": (both - forward) / forward,
        "forward_bytes": alone,
        "both_bytes": together,
        "memory_ratio": together / alone,
    }


def channel_cost(scheme: str, layer: str, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """One call for 64 channels against one for one; forward, and forward with backward."""
    domain = domain_of(scheme, lamina.Sphere(), nodes=NODES, order=2, device=device, dtype=dtype)
    row: dict[str, Any] = {"scheme": scheme, "layer": layer, "dtype": str(dtype), "unknowns": domain.unknowns}
    for count in (1, CHANNELS):
        f = field(domain, count).requires_grad_()
        if layer == "poisson":
            made: torch.nn.Module = lamina.nn.PoissonLayer(domain)
        else:
            times = torch.logspace(-3, -1, count) if count > 1 else 0.01
            made = lamina.nn.HeatLayer(count, domain, time=times).to(device)

        def forward(made=made, f=f) -> None:
            with torch.no_grad():
                made(f)

        def both(made=made, f=f) -> None:
            made(f).square().sum().backward()

        both()
        row[f"forward_{count}"], row[f"both_{count}"] = fastest(forward, 3, device), fastest(both, 3, device)
    row["ratio"] = row[f"forward_{CHANNELS}"] / row["forward_1"]
    row["ratio_with_backward"] = row[f"both_{CHANNELS}"] / row["both_1"]
    return row


def table(folder: Path) -> str:
    """The results that are there, as Markdown."""

    def rows(part: str) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for device, ending in (("CPU", ""), ("H200", "_cuda")):
            path = folder / f"layers_{part}{ending}.json"
            if path.is_file():
                found += [(device, row) for row in json.loads(path.read_text())["figures"]["rows"]]
        return found

    lines = ["| backward of a Poisson solve | device | forward | backward over forward | memory over forward |"]
    lines.append("|---|---|---|---|---|")
    for part, what in (("backward", "to the right-hand side"), ("shape", "to an implicit shape, all built anew")):
        for device, r in rows(part):
            seconds = f"{1e3 * r['forward_seconds']:.0f} ms"
            lines.append(
                f"| {r['scheme']}, {what} | {device} | {seconds} | {r['ratio']:.1f}x | {r['memory_ratio']:.1f}x |"
            )
    lines += ["", "| 64 channels against one | device | precision | one | 64 | ratio | with backward |"]
    lines.append("|---|---|---|---|---|---|---|")
    for device, r in rows("channels"):
        one, many = (f"{1e3 * r[key]:.3g} ms" for key in ("forward_1", f"forward_{CHANNELS}"))
        lines.append(
            f"| {r['layer']}, {r['scheme']} | {device} | {r['dtype'].removeprefix('torch.')} | {one} | {many} "
            f"| {r['ratio']:.1f}x | {r['ratio_with_backward']:.1f}x |"
        )
    return "\n".join(lines)


def write_table(folder: Path) -> None:
    page = BENCHMARKS.parent / "docs" / "layers.md"
    begin, end = "<!-- layers: begin -->\n", "\n<!-- layers: end -->"
    before, rest = page.read_text().split(begin)
    write(page, before + begin + table(folder) + end + rest.split(end)[1])


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--parts", nargs="+", default=["backward", "shape", "channels"])
    line.add_argument("--device", default="cpu")
    line.add_argument("--memory", choices=["rhs", "rhs-both", "shape", "shape-both"], help="one case, for its memory")
    line.add_argument("--scheme", default="trace")
    options = line.parse_args()
    if options.memory:
        print(json.dumps(remember(options.device, options.memory, options.scheme)))
        return
    if "table" in options.parts:
        write_table(options.out)
    found: dict[str, Any] = {}
    if "backward" in options.parts:
        found["backward"] = [backward_cost(scheme, options.device) for scheme in ("trace", "coupled")]
    if "shape" in options.parts:
        found["shape"] = [shape_cost(scheme, options.device) for scheme in ("trace", "coupled")]
    if "channels" in options.parts:
        found["channels"] = [
            channel_cost(scheme, layer, options.device, dtype)
            for scheme, layer in (("trace", "poisson"), ("coupled", "poisson"), ("trace", "heat"))
            for dtype in (torch.float64, torch.float32)
        ]
    for part, rows in found.items():
        for row in rows:
            print(part, {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in row.items()})
        record(f"layers_{part}" + ("_cuda" if options.device == "cuda" else ""), {"rows": rows}, options.out)


if __name__ == "__main__":
    main()
