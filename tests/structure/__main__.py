"""`python -m tests.structure` prints how the code is divided: folders, long files and functions, imports, three walks.

`--walks` lists every function of the walks too. `tests.structure.walks` says what a walk is.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import groupby

from tests.structure.imports import MODULES, arrows, arrows_up, circles, folder_circles
from tests.structure.sizes import SMALL, Length, doubled_classes, files, functions, modules_by_folder, small_modules
from tests.structure.walks import WALKS, Walk, by_stage, count

LONGEST = 15
"""Files and functions that are listed."""


def main() -> None:
    """Print all of it."""
    parser = ArgumentParser(prog="python -m tests.structure", description=__doc__)
    parser.add_argument("--walks", action="store_true", help="list every function of the walks")
    arguments = parser.parse_args()
    _print_folders()
    _print_longest("files", files())
    _print_longest("functions", functions())
    _print_imports()
    for walk in WALKS:
        _print_walk(walk, whole=arguments.walks)


def _print_folders() -> None:
    print("modules per folder")
    for folder, modules in modules_by_folder().items():
        print(f"{modules:>6}  {folder}")
    packages = {path.parent for path in MODULES.values()}
    print(f"\n{len(MODULES)} modules in {len(packages)} folders, {small_modules()} of at most {SMALL} lines")
    doubled = doubled_classes()
    print(f"{len(doubled)} class names in several files: {', '.join(doubled)}")


def _print_longest(what: str, lengths: Sequence[Length]) -> None:
    print(f"\nlongest {what}, in lines, of {len(lengths)}")
    for lines, name in lengths[:LONGEST]:
        print(f"{lines:>6}  {name}")


def _print_imports() -> None:
    print(f"\n{len(arrows())} imports within the project")
    for what, found in (("circles", circles()), ("circles of folders", folder_circles()), ("arrows up", arrows_up())):
        print(f"  {what}: {len(found) or 'none'}")
        for one in found:
            print(f"    {' -> '.join(one)}")


def _print_walk(walk: Walk, *, whole: bool) -> None:
    stops = walk.stops()
    print(f"\nwalk of {walk.title}: {count(stops)}")
    print(f"  before, counted in the same way at e5d7695: {walk.before}")
    if walk.by_hand:
        print(f"  before, counted by hand by a reviewer, by a rule of their own: {walk.by_hand}")
    for stage, own in by_stage(stops).items():
        print(f"    {stage}: {own}")
    if whole:
        for file, group in groupby(stops, key=lambda stop: stop.file):
            print(f"  {file}: {', '.join(stop.function for stop in group)}")


if __name__ == "__main__":
    main()
