"""All networks of the ablations at once, in several processes on one device.

    python -m lamina.paper.tables.ablation_run --device cuda --processes 6 --seconds 540 --out FOLDER

FOLDER/figures.json holds the figures of every network, written anew after each, and FOLDER/ablation_*/ results.json and
table.md, as `lamina reproduce` leaves them. A run that ended early goes on where it was with --done FIGURES. Needs
torch, numpy and scipy alone.
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
from lamina.paper.tables.ablation_networks import QUICK, Plan, measure
from lamina.paper.tables.ablations import FULL, TABLES, TRAINED, Job, all_jobs
from lamina.paper.tables.base import Row
from lamina.paper.tables.record import plain
from lamina.paper.tables.results import circumstances, write_results

SOLVING = 20.0  # seconds kept for the solves that follow a training


class TimeUpError(Exception):
    """The run must end now."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 0 if nothing failed and nothing is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing that would end later")
    parser.add_argument("--steps", type=int, default=FULL.training.steps, help="of each training")
    parser.add_argument("--batch", type=int, default=FULL.training.batch, help="patches a step")
    parser.add_argument("--done", type=Path, help="figures.json of an earlier run, to go on from")
    parser.add_argument("--quick", action="store_true", help="the small form of everything")
    parser.add_argument("--only", default="", help="jobs with this in their name")
    asked = parser.parse_args(arguments)
    start = time.time()
    training = replace(FULL.training, steps=asked.steps, batch=asked.batch, validate_every=asked.steps)
    plan = QUICK if asked.quick else replace(FULL, training=training)
    jobs = [job for job in all_jobs(plan) if asked.only in job.name]
    found = _earlier(asked.done, plan)
    waiting = [job for job in jobs if job.name not in found]
    command = (
        f"python -m lamina.paper.tables.ablation_run --device {asked.device} --processes {asked.processes} "
        f"--steps {plan.training.steps} --batch {plan.training.batch}"
    )
    run = circumstances(command, device=asked.device, processes=asked.processes, plan=asdict(plan))
    asked.out.mkdir(parents=True, exist_ok=True)
    _say(start, f"{len(waiting)} of {len(jobs)} jobs to do, {asked.processes} processes on {asked.device}")
    _smoke(asked.device)
    _say(start, "the small form works")
    failed, skipped = [], []
    pool = ProcessPoolExecutor(
        asked.processes, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(asked.threads,)
    )
    futures: dict[Future[Row | None], Job] = {
        pool.submit(_work, job, plan, asked.device, start + asked.seconds): job for job in waiting
    }
    for future in as_completed(futures):
        name = futures[future].name
        try:
            figures = future.result()
        except Exception:
            failed.append(name)
            _say(start, f"FAILED {name}\n{traceback.format_exc()}")
            continue
        if figures is None:
            skipped.append(name)
            continue
        found[name] = figures
        errors = {
            key: value.get("nmae", value.get("failed")) for key, value in figures.items() if isinstance(value, dict)
        }
        held, seconds = figures.get("held_out_mse"), figures.get("train_seconds")
        _say(start, f"{name}: held-out {held}, nmae {errors}, trained in {seconds} s")
        _write(asked.out, plan, run, found)
    pool.shutdown()
    _write(asked.out, plan, run, found)
    missing = [job.name for job in jobs if job.name not in found]
    _say(start, f"done; failed: {failed or 'none'}; no time for: {skipped or 'none'}")
    return 1 if missing else 0


def _work(job: Job, plan: Plan, device: str, deadline: float) -> Row | None:
    """Figures of a job; None if there was no time for it."""

    def report(fraction: float, what: str) -> None:
        if time.time() > deadline - SOLVING:
            raise TimeUpError(what)

    try:
        report(0.0, job.name)
        return measure(job, plan, device, report)
    except TimeUpError:
        return None


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)


def _smoke(device: str) -> None:
    """One small network and one control, through all that the others go through."""
    for job in all_jobs(QUICK)[:1] + [job for ablation in TRAINED[:1] for job in ablation.jobs(QUICK)][-1:]:
        found = measure(job, QUICK, device)
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
    for ablation, table in zip(TRAINED, TABLES, strict=False):
        missing = [job.name for job in dict.fromkeys(ablation.jobs(plan)) if job.name not in found]
        rows = ablation.rows(plan, lambda job: found.get(job.name))
        write_results(folder, table, rows, {**about, "missing": missing})


def _say(start: float, what: str) -> None:
    print(f"{time.time() - start:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
