"""Play one seed again, or many: ``python -m tests.simulation SEED [WORD]``.

Without a seed it plays stories until FAULTS (default 50,000) things have gone wrong:
``python -m tests.simulation --faults 50000``.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.judge import judge, played, search, told


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.simulation")
    asked.add_argument("seed", type=int, nargs="?", help="the story to tell")
    asked.add_argument("about", nargs="?", default="", help="only the lines that name this")
    asked.add_argument("--faults", type=int, default=50_000)
    asked.add_argument("--first", type=int, default=0, help="the seed to begin with")
    options = asked.parse_args()
    if options.seed is not None:
        world = played(options.seed)
        for line in told(world, options.about):
            print(line)  # noqa: T201 - a command
        broken = judge(world)
        print(f"seed {options.seed}, story {world.digest()}: {len(broken)} promises broken")  # noqa: T201
        for problem in broken:
            print(f"  {problem}")  # noqa: T201
        return bool(broken)
    started = time.process_time()
    hunt = search(faults=options.faults, first=options.first, stop_at_first=False)
    took = time.process_time() - started
    print(f"{hunt.faults} faults in {hunt.stories} stories, {took:.1f} s of processor time")  # noqa: T201
    for what, count in hunt.counts.most_common():
        print(f"{count:8}  {what}")  # noqa: T201
    for seed, broken in hunt.broken.items():
        print(f"seed {seed}: {broken[0]}")  # noqa: T201
        print(f"  the story: .venv/bin/python -m tests.simulation {seed}")  # noqa: T201
    return bool(hunt.broken)


if __name__ == "__main__":
    sys.exit(main())
