"""All networks of the ablations at once, in several processes on one device.

    python -m lamina.paper.tables.ablation_run --device cuda --processes 6 --seconds 540 --out FOLDER

FOLDER/figures.json has the figures of every network; it is written after each of them. FOLDER/ablation_*/ have
results.json and table.md, as `lamina paper reproduce` writes them. With --done FIGURES a run continues from an earlier
one that ended early. Only torch, numpy and scipy are needed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path

import torch

from lamina.io.export import atomic_write
from lamina.paper.tables.ablation_networks import QUICK_PLAN, Plan, measure
from lamina.paper.tables.ablations import FULL_PLAN, TABLES, TRAINED_ABLATIONS, Job, all_jobs
from lamina.paper.tables.provenance import plain
from lamina.paper.tables.result_files import circumstances, write_results
from lamina.paper.tables.table import Row

# A training ends if less than these seconds are left: its solves still follow. Chosen by trial.
SECONDS_KEPT_FOR_SOLVING = 20.0


class TimeUpError(Exception):
    """The run must end now."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 0 if nothing failed and nothing is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="threads of each process")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="time limit; jobs that would end later are left out"
    )
    parser.add_argument("--steps", type=int, default=FULL_PLAN.training.steps, help="steps of each training")
    parser.add_argument("--batch", type=int, default=FULL_PLAN.training.batch, help="patches in a step")
    parser.add_argument("--done", type=Path, help="figures.json of an earlier run, to continue from")
    parser.add_argument("--quick", action="store_true", help="the small form of all jobs")
    parser.add_argument("--only", default="", help="run only jobs with this text in their name")
    options = parser.parse_args(arguments)
    start = time.time()
    training = replace(FULL_PLAN.training, steps=options.steps, batch=options.batch, validate_every=options.steps)
    plan = QUICK_PLAN if options.quick else replace(FULL_PLAN, training=training)
    jobs = [job for job in all_jobs(plan) if options.only in job.name]
    found = _earlier(options.done, plan)
    waiting = [job for job in jobs if job.name not in found]
    command = (
        f"python -m lamina.paper.tables.ablation_run --device {options.device} --processes {options.processes} "
        f"--steps {plan.training.steps} --batch {plan.training.batch}"
    )
    run = circumstances(command, device=options.device, processes=options.processes, plan=asdict(plan))
    options.out.mkdir(parents=True, exist_ok=True)
    _print_at(start, f"{len(waiting)} of {len(jobs)} jobs to do, {options.processes} processes on {options.device}")
    _smoke(options.device)
    _print_at(start, "the small form works")
    failed, skipped = [], []
    pool = ProcessPoolExecutor(
        options.processes, multiprocessing.get_context("spawn"), initializer=_set_threads, initargs=(options.threads,)
    )
    futures: dict[Future[Row | None], Job] = {
        pool.submit(_measure_in_time, job, plan, options.device, start + options.seconds): job for job in waiting
    }
    for future in as_completed(futures):
        name = futures[future].name
        try:
            figures = future.result()
        except Exception:
            failed.append(name)
            _print_at(start, f"FAILED {name}\n{traceback.format_exc()}")
            continue
        if figures is None:
            skipped.append(name)
            continue
        found[name] = figures
        errors = {
            key: value.get("nmae", value.get("failed")) for key, value in figures.items() if isinstance(value, dict)
        }
        held, seconds = figures.get("held_out_mse"), figures.get("train_seconds")
        _print_at(start, f"{name}: held-out {held}, nmae {errors}, trained in {seconds} s")
        _write(options.out, plan, run, found)
    pool.shutdown()
    _write(options.out, plan, run, found)
    missing = [job.name for job in jobs if job.name not in found]
    _print_at(start, f"done; failed: {failed or 'none'}; no time for: {skipped or 'none'}")
    return 1 if missing else 0


def _measure_in_time(job: Job, plan: Plan, device: str, deadline: float) -> Row | None:
    """Figures of a job; None if there was not enough time."""

    def report(fraction: float, what: str) -> None:
        if time.time() > deadline - SECONDS_KEPT_FOR_SOLVING:
            raise TimeUpError(what)

    try:
        report(0.0, job.name)
        return measure(job, plan, device, report)
    except TimeUpError:
        return None


def _set_threads(threads: int) -> None:
    torch.set_num_threads(threads)


def _smoke(device: str) -> None:
    """Run one small network and one control through all steps, to find errors early."""
    for job in (
        all_jobs(QUICK_PLAN)[:1] + [job for ablation in TRAINED_ABLATIONS[:1] for job in ablation.jobs(QUICK_PLAN)][-1:]
    ):
        found = measure(job, QUICK_PLAN, device)
        if "nmae" not in found["sphere"]:
            raise RuntimeError(f"The small form gave {found}.")


def _earlier(path: Path | None, plan: Plan) -> dict[str, Row]:
    if path is None:
        return {}
    document = json.loads(path.read_text())
    if document["plan"] != plain(asdict(plan)):
        raise SystemExit(f"{path} was made with other settings: {document['plan']}, not {asdict(plan)}.")
    return document["found"]


def _write(folder: Path, plan: Plan, about: Row, found: dict[str, Row]) -> None:
    text = json.dumps(plain({**about, "found": found}), indent=1) + "\n"
    atomic_write(folder / "figures.json", lambda file: file.write(text.encode()))
    for ablation, table in zip(TRAINED_ABLATIONS, TABLES, strict=False):
        missing = [job.name for job in dict.fromkeys(ablation.jobs(plan)) if job.name not in found]
        rows = ablation.rows(plan, lambda job: found.get(job.name))
        write_results(folder, table, rows, {**about, "missing": missing})


def _print_at(start: float, what: str) -> None:
    print(f"{time.time() - start:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
