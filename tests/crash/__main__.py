"""Run many seeds of the crash model: `python -m tests.crash --seeds 0..5000`.

Prints its progress, so that a long run can be stopped and resumed, and for each seed that breaks a
promise, how that came about. The exit status is 1 if there was one, or if Ctrl-C stopped the run.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from typing import NamedTuple

from tests.crash.model import run_seed

FAILURES_MAX = 5
REPORT_EACH = 5000


class Tally(NamedTuple):
    """The totals of some seeds."""

    images: int
    spoilt: int
    uncovered: int
    failures: int


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # The output of a program.


def _range(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last)) if last else range(int(first), int(first) + 1)


def run(seeds: range, images_max: int, seconds_max: float) -> tuple[Tally, int]:
    """Run seeds until a limit is reached, or Ctrl-C; return the tally and the next seed."""
    start = time.monotonic()
    images = spoilt = uncovered = failures = reported = 0
    seed = seeds.start
    for seed in seeds:
        if images >= images_max or time.monotonic() - start >= seconds_max:
            break
        try:
            done = run_seed(seed)
        except KeyboardInterrupt:
            break
        except Exception:
            failures += 1
            traceback.print_exc()
            if failures == FAILURES_MAX:
                break
        else:
            images += done.images
            spoilt += done.spoilt
            uncovered += done.uncovered
        if images >= reported + REPORT_EACH:
            reported = images
            _say(f"{images} images, {spoilt} spoilt, {failures} failures; next seed {seed + 1}")
    else:
        seed = seeds.stop
    return Tally(images, spoilt, uncovered, failures), seed


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(1_000_000_000), metavar="A..B")
    parser.add_argument("--images", type=int, default=1 << 62, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    arguments = parser.parse_args()
    logging.getLogger("cometmq").addHandler(logging.NullHandler())  # Full disks are no news here.
    tally, next_seed = run(arguments.seeds, arguments.images, arguments.seconds)
    _say(
        f"seeds {arguments.seeds.start}..{next_seed}: {tally.images} images,"
        f" {tally.spoilt} spoilt ones, {tally.failures} failures, {tally.uncovered} images with"
        " damage to records that were not promised, where no checksum covers them"
    )
    is_done = next_seed == arguments.seeds.stop or tally.images >= arguments.images
    if not is_done:
        _say(f"to go on: --seeds {next_seed}..{arguments.seeds.stop}")
    is_done |= arguments.seconds < float("inf")
    return 0 if is_done and not tally.failures else 1


if __name__ == "__main__":
    sys.exit(main())
