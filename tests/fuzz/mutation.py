"""One target under random mutations: `python -m tests.fuzz.mutation TARGET SECONDS SEED`.

These are not guided by coverage. They serve where atheris has no build, and in the fast tests,
which need the same inputs at each run.
"""

from __future__ import annotations

import sys
import time
from random import Random
from typing import TYPE_CHECKING

from tests.fuzz.target import FINDINGS, INPUT_SIZE_MAX, SECONDS_MAX, accepts, load, seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Sizes and numbers that break arithmetic, and bytes that mean something in JSON and MessagePack.
_TELLING = (
    *(n.to_bytes(4, "big") for n in (0, 1, 4, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)),
    *(n.to_bytes(2, "big") for n in (0, 1, 2**15 - 1, 2**15, 2**16 - 1)),
    *(bytes([n]) for n in b'\x00\x01\x02\x7f\x80\x90\xc0\xc1\xdd\xdf\xff"{}[],:\\'),
    b"null",
    b"\\ud800",
    b"1e999",
    b"-0",
)


def mutate(inputs: Sequence[bytes], random: Random) -> bytes:
    """Change one input in one to six places."""
    data = bytearray(random.choice(inputs))
    for _ in range(random.randint(1, 6)):
        at = random.randint(0, len(data))
        match random.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << random.randrange(8)
            case 1:
                data[at:at] = random.choice(_TELLING)
            case 2:
                token = random.choice(_TELLING)
                data[at : at + len(token)] = token
            case 3:
                del data[at : at + random.randint(1, 16)]
            case 4:
                del data[at:]
            case _:
                other = random.choice(inputs)
                data[at:] = other[random.randint(0, len(other)) :]
    return bytes(data[:INPUT_SIZE_MAX])


def check_timed(check: Callable[[bytes], None], data: bytes) -> None:
    """Check one input. Taking very long is a finding, too."""
    started = time.monotonic()
    accepts(check, data)
    assert time.monotonic() - started < SECONDS_MAX, "took too long"


def main() -> None:
    """Mutate until the time is over. Write a finding to a file and raise it."""
    name, seconds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    check, inputs, random = load(name), seeds(name), Random(seed)
    executions, end = 0, time.monotonic() + seconds
    sys.stdout.write(f"seed: {seed}\n")
    while time.monotonic() < end:
        data = mutate(inputs, random)
        try:
            check_timed(check, data)
        except BaseException:
            FINDINGS.mkdir(parents=True, exist_ok=True)
            (FINDINGS / f"{name}-{seed}-{executions}").write_bytes(data)
            raise
        executions += 1
    sys.stdout.write(f"executions: {executions}\n")


if __name__ == "__main__":
    main()
