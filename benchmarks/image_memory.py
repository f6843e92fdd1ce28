"""Memory that the images of a federation take, against one tensor and a copy for each client.

python benchmarks/image_memory.py --images 4000 --size 224

A folder of JPEG files is loaded and shared out, each client's images are hashed, and all batches of
an epoch are read: by the package, which maps many images from a file and has them once, and as
plainly as can be. Each version has a process of its own. Shown is the most that it had in memory
of what cannot be given back (RssAnon of Linux), above what it had before, and the wall clock. The
last line compares all bytes of all batches.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tools import apart, options

from fedre_privacy.data import mapped
from fedre_privacy.data.base import datasets
from fedre_privacy.protocols.blocks.state import Samples
from fedre_privacy.runs.initial_state import all_samples

BATCH = 32
CLASSES = 10
MIB = 2**20


@dataclass(frozen=True)
class Taken:
    """What a version took: bytes of images, most bytes added, seconds, hash of all batches."""

    images: int
    peak: int
    seconds: float
    digest: str


class Peak:
    """The most private memory of this process inside a ``with`` block, looked at every 2 ms."""

    def __enter__(self) -> Peak:
        self.before = self.most = private_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.most = max(self.most, private_bytes())


def private_bytes() -> int:
    """Memory of this process that no file holds (bytes)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise LookupError("RssAnon: this benchmark needs Linux")


def write_folder(folder: Path, count: int, size: int, different: int = 200) -> None:
    """Write JPEG files of noise that was made smooth; beyond `different` they are links."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < different:
            small = rng.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
            Image.fromarray(small).resize((size, size)).save(path, quality=90)
        else:
            base = number % different
            os.link(folder / f"{base % CLASSES}" / f"{base}.jpg", path)


def work(folder: str, clients: int, plain: bool) -> Taken:
    """Load, share out, hash and read all batches of one epoch."""
    torch.set_num_threads(1)
    mapped.SHARE = 1e-9 if plain else 1e18  # type: ignore[assignment]
    began, digest = time.perf_counter(), hashlib.sha256()
    with Peak() as peak:
        data = datasets.get("imagefolder")(path=folder).load()
        whole = all_samples(data, torch.device("cpu"))
        shares = torch.arange(len(data)).tensor_split(clients)
        if plain:
            own = [Samples(data.images[share], data.labels[share]) for share in shares]
        else:
            own = [whole.take(share) for share in shares]
        for client, samples in enumerate(own):
            digest.update(str(samples.fingerprint()).encode())
            order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(client))
            for index in order.split(BATCH):
                images, labels = samples.batch(index)
                digest.update(images.numpy())
                digest.update(labels.numpy())
    added = peak.most - peak.before
    return Taken(data.images.nbytes, added, time.perf_counter() - began, digest.hexdigest())


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = options(__doc__)
    made.add_argument("--images", type=int, default=4000, help="images (default: 4000)")
    made.add_argument("--size", type=int, default=224, help="side, pixels (default: 224)")
    made.add_argument("--clients", type=int, default=10, help="clients (default: 10)")
    return made


def main() -> None:
    """Run both versions in turn and print what they took."""
    chosen = parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), chosen.images, chosen.size)
        plain = apart(work, folder, chosen.clients, True)
        ours = apart(work, folder, chosen.clients, False)
    print(f"{'version':<10}{'images, MiB':>14}{'memory added, MiB':>20}{'seconds':>10}")
    for name, taken in (("plain", plain), ("ours", ours)):
        print(
            f"{name:<10}{taken.images / MIB:>14.0f}{taken.peak / MIB:>20.0f}{taken.seconds:>10.1f}"
        )
    print(f"ours / plain{ours.peak / plain.peak:>32.3f}{ours.seconds / plain.seconds:>10.2f}")
    print(f"all batches {'equal' if ours.digest == plain.digest else 'DIFFER'}")


if __name__ == "__main__":
    main()
