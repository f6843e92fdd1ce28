"""Numbers of a GPU, and campaigns of trainings and attacks, in the minutes given.

    python benchmarks/gpu.py --minutes 9 --jobs 8 --data FILE.npz
    python benchmarks/gpu.py --size cpu --jobs 2 --minutes 90 --data FILE.npz
    python benchmarks/gpu.py --rehearse --data FILE.npz    both lists on a CPU, at toy sizes
    python benchmarks/gpu.py --table                       the results so far, as Markdown
    python benchmarks/gpu.py --fill results/learning.md    the tables of a page, written anew
    python benchmarks/gpu.py --size cpu --figure STEM      accuracies of a campaign, drawn

On a GPU there are two lists, each in order of value: the kit, which measures speed and runs alone,
and the campaign at published size, several of whose jobs share the GPU. Each job is a process of
its own. Its result is one JSON file in DIR/LIST the moment it ends. A job that is done there is not
done again, here or elsewhere. One is begun only if the minutes that it is expected to take are
left, which earlier jobs of its kind on this GPU tell. Models and uploads stay in --runs. The
package is imported from this checkout; nothing is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import kit
import tables
import tools
import torch
from scheduling import ROOT, Results, Scheduler, machine

NEEDED = ("yaml", "safetensors", "pandas", "matplotlib", "sklearn", "skimage", "scipy", "rich",
          "PIL", "torchvision", "jinja2", "adjustText", "opacus", "msgspec", "shtab")  # fmt: skip
"""Modules that the package imports, beside torch and numpy; see gpu-requirements.txt."""
KIT, PUBLISHED, CPU, TOY = "kit", "published", "cpu", "toy"
RESULTS = ROOT / "benchmarks" / "results"
KIT_SHARE = 1 / 3
"""Of the minutes, for the kit; the campaign has the rest."""


@contextmanager
def importable() -> Iterator[str]:
    """A folder in which the checkout lies as it is imported: links to its four packages."""
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "fedre_privacy"
        package.mkdir()
        for path in (ROOT / "fedre_privacy").iterdir():
            (package / path.name).symlink_to(path)
        for name in ("attacks", "defenses", "eval"):
            (package / name).symlink_to(ROOT / name)
        yield scratch


def missing() -> list[str]:
    """Modules that are needed and not there."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class Shipment:
    """One file with every result of this call, to be carried where the repository is.

    Args:
        path: of the file; None: none is written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.held: dict[str, object] = {}

    def add(self, group: str, results: Results, since: float) -> None:
        """Take up the results of a list that are newer than a moment (`time.time`)."""
        if self.path is None or not results.folder.is_dir():
            return
        for name in results.all():
            if results.file(name).stat().st_mtime >= since:
                self.held[f"{group}/{name}"] = results.read(name)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.held) + "\n", encoding="utf-8")
        beside.replace(self.path)


def unpack(path: Path, folder: Path) -> int:
    """Write every result of a shipment as a file of its own; return how many."""
    held = json.loads(path.read_text(encoding="utf-8"))
    for key, result in held.items():
        group, _, name = key.partition("/")
        if not all(part.replace(".", "").replace("-", "").isalnum() for part in (group, name)):
            raise SystemExit(f"{path}: {key!r} is no name of a result.")
        Results(folder / group).write(name, result)
    return len(held)


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = tools.options(__doc__)
    made.add_argument("--minutes", type=float, default=9.0, help="to be done in (default: 9)")
    made.add_argument("--jobs", type=int, default=1, help="of the campaign at once (default: 1)")
    made.add_argument("--data", type=Path, help="npz data set; without it the kit alone is done")
    made.add_argument("--size", choices=(PUBLISHED, CPU), default=PUBLISHED,
                      help="of the campaign; cpu: no GPU and no kit")  # fmt: skip
    made.add_argument("--results", type=Path, default=RESULTS, metavar="DIR",
                      help="folder of results (default: benchmarks/results)")  # fmt: skip
    made.add_argument("--runs", type=Path, help="folder of runs (default: a temporary one)")
    made.add_argument("--only", default="", help="jobs whose names hold this text")
    made.add_argument("--ship", type=Path, metavar="FILE", help="all new results in one file too")
    made.add_argument("--take", type=Path, metavar="FILE", help="unpack such a file into DIR")
    made.add_argument("--commit", default="", help="of this checkout, where it has no history")
    made.add_argument("--list", action="store_true", help="print the jobs and what is done")
    made.add_argument("--rehearse", action="store_true", help="on a CPU, at toy sizes")
    made.add_argument("--table", action="store_true", help="print what the results hold")
    made.add_argument("--fill", type=Path, nargs="+", metavar="PAGE",
                      help="write the tables of pages anew")  # fmt: skip
    made.add_argument("--figure", type=Path, metavar="STEM", help="draw a campaign's accuracies")
    return made


def refusal(chosen: argparse.Namespace) -> str:
    """Why nothing can be done; empty where something can."""
    absent = missing()
    if absent:
        return f"Absent: {', '.join(absent)}. See benchmarks/gpu-requirements.txt."
    on_cpu = chosen.rehearse or chosen.size == CPU
    if not (on_cpu or chosen.list or torch.cuda.is_available()):
        return (
            "No GPU is here. --size cpu does the campaign of CPUs; --rehearse runs every job on "
            "the CPU at toy sizes."
        )
    if chosen.data is None and chosen.size == CPU:
        return "The campaign needs --data FILE.npz, all of CIFAR-10 as the npz data set reads it."
    if chosen.data is not None and not chosen.data.is_file():
        return f"{chosen.data} is not there."
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is not done yet; return 1 if a job failed."""
    chosen = parser().parse_args(arguments)
    if chosen.take:
        print(f"{unpack(chosen.take, chosen.results)} results in {chosen.results}")
        return 0
    if chosen.table:
        print(tables.everything(chosen.results))
        return 0
    if chosen.fill:
        for page in chosen.fill:
            page.write_text(tables.fill(page, chosen.results), encoding="utf-8")
        return 0
    if chosen.figure:
        with importable() as links:
            sys.path.insert(0, links)
            print(tables.figure(Results(chosen.results / chosen.size), chosen.figure))
        return 0
    problem = refusal(chosen)
    if problem:
        print(problem)
        return 1
    with importable() as links, tempfile.TemporaryDirectory() as scratch:
        return work(chosen, links, Path(scratch))


def work(chosen: argparse.Namespace, links: str, scratch: Path) -> int:
    """Do the kit, then the campaign; return 1 if a job failed."""
    sys.path.insert(0, links)
    import campaign

    on_cpu = chosen.rehearse or chosen.size == CPU
    now, began = time.time(), time.monotonic()
    ends = began + 60 * chosen.minutes
    size = TOY if chosen.rehearse else chosen.size
    # Packages that were carried to this machine are found by the path that is set already.
    found = os.pathsep.join(filter(None, (links, os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": found}
    if on_cpu or chosen.jobs > 1:
        environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    on = machine(chosen.commit)
    kit.random_images(scratch)
    shipment = Shipment(chosen.ship)
    data = None if chosen.data is None else chosen.data.resolve()
    measured = kit.jobs(scratch, data, rehearse=chosen.rehearse)
    lists = [] if chosen.size == CPU else [(KIT, measured)]
    if data is not None:
        runs = (chosen.runs or scratch / "runs").resolve()
        device = "cpu" if on_cpu else "cuda"
        given = ("--data", str(data), "--runs", str(runs), "--device", device,
                 "--out", "{out}")  # fmt: skip
        lists.append((size, campaign.jobs(size, given)))
    failed = False
    for group, jobs in lists:
        results = Results(chosen.results / group)
        jobs = [job for job in jobs if chosen.only in job.name]
        if chosen.list:
            for job in jobs:
                print(f"{group}: {job.name}: {'done' if results.done(job.name) else 'to do'}")
            continue

        def say(text: str, group: str = group, results: Results = results) -> None:
            print(f"{group}: {text}", flush=True)
            shipment.add(group, results, now)

        scheduler = Scheduler(results, scratch / group, environment, on, say)
        until = began + 60 * chosen.minutes * KIT_SHARE if group == KIT and len(lists) > 1 else ends
        scheduler.work(jobs, until, chosen.jobs)
        failed |= scheduler.failed > 0
        left = sum(not results.done(job.name) for job in jobs)
        print(f"{group}: {len(jobs) - left} of {len(jobs)} done", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
