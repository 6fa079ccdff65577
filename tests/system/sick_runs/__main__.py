"""Scores the findings about runs with planted causes: `python -m tests.system.sick_runs`.

The runs are simulated, with exact times, or with `--real` those of real PyTorch programs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from .bar import scores as bar_scores
from .bar import write_bar
from .building import Family
from .families import AT_THRESHOLDS, FAMILIES
from .page import PAGE, first_scores, table, updated
from .scored import FindingsOf, analysis, scored
from .scoring import Result, Score, has_right_status

SEEDS = 10
_MOST_SHOWN = 3


def main(arguments: Sequence[str] | None = None, findings_of: FindingsOf | None = None) -> int:
    """Print the scores; return 1 if a family that was named does not exist."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.sick_runs", description=__doc__)
    parser.add_argument("--family", help="only families whose name contains this text")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="the cases of each family")
    parser.add_argument("--write-docs", action="store_true", help="update docs/verdicts.md")
    parser.add_argument("--all-failing", action="store_true", help="show every failing case")
    parser.add_argument("--write-bar", action="store_true",
                        help="only write the outcomes that the tests expect")  # fmt: skip
    real = parser.add_argument_group("real programs")
    real.add_argument("--real", action="store_true", help="run real programs and their twins")
    real.add_argument("--name", default="", help="only programs whose name contains this text")
    real.add_argument("--repeat", type=int, default=3, help="the runs of each program")
    real.add_argument("--load", action="store_true", help="beside a busy process on each core")
    real.add_argument("--jobs", type=int, default=1, help="programs that run at the same time")
    real.add_argument("--keep", type=Path, help="keep the last recordings in this folder")
    options = parser.parse_args(arguments)
    if options.real:
        from .real import score_real

        return score_real(options.name, options.repeat, is_loaded=options.load,
                          jobs=options.jobs, keep=options.keep)  # fmt: skip
    if options.write_docs and (options.family or options.seeds != SEEDS):
        parser.error(f"--write-docs needs all families and {SEEDS} seeds")
    analyse = analysis() if findings_of is None else findings_of
    if options.write_bar:
        write_bar(bar_scores(analyse))
        return 0
    wanted = options.family or ""
    main_set = [each for each in FAMILIES if wanted in each.name]
    thresholds = [each for each in AT_THRESHOLDS if wanted in each.name]
    if not main_set and not thresholds:
        print(f"no family has a name with {wanted!r}")
        return 1
    most = None if options.all_failing else _MOST_SHOWN
    begun = time.perf_counter()
    scores = _scores(main_set, options.seeds, analyse, most)
    if thresholds:
        _statuses(thresholds, options.seeds, analyse)
    print(f"\n{time.perf_counter() - begun:.0f} s")
    if options.write_docs:
        page = PAGE.read_text()
        PAGE.write_text(updated(page, table(main_set, scores, first_scores(page))))
        print(f"written: {PAGE}")
    return 0


def _scores(
    families: Sequence[Family], seeds: int, findings_of: FindingsOf, most: int | None
) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    results: list[Result] = []
    print(f"{'family':55s} first second  wrong silent  false")
    for each in families:
        score = scores[each.name] = Score()
        of_family = list(scored(each, range(seeds), findings_of))
        for found in of_family:
            score.add(found)
        print(_line(each.name, score), flush=True)
        failing = [found for found in of_family if found.outcome != "right first"]
        for found in failing[:most]:
            _show(found)
        results += of_family
    _summary(results)
    return scores


def _statuses(families: Sequence[Family], seeds: int, findings_of: FindingsOf) -> None:
    """Print how often the status is right at the thresholds: healthy, or not."""
    print(f"\nThe status at multiples of the thresholds\n{'':55s} right")
    few = []
    for each in families:
        results = list(scored(each, range(seeds), findings_of))
        right = sum(has_right_status(found) for found in results)
        print(f"{each.name:55s} {right:>2}/{seeds}", flush=True)
        if right < 0.9 * seeds:
            few.append(each.name)
    print(f"right in less than nine of ten seeds: {len(few)} of {len(families)}")


def _line(name: str, score: Score) -> str:
    counts = score.outcomes
    shown = [counts[each] for each in ("right second", "wrong", "silent", "false alarm")]
    rest = " ".join(f"{count or '':>6}" for count in shown)
    return f"{name:55s} {counts['right first']:>2}/{score.cases:<2} {rest}"


def _show(found: Result) -> None:
    case = found.case
    print(f"    {found.outcome}: {json.dumps(case.parameters)}")
    print(f"      expected {json.dumps([each.to_json() for each in case.expected])}")
    names = ("kind", "severity", "share", "phase", "scope", "ranks", "steps", "every", "moving")
    shown = [
        {name: value for name in names if (value := each[name]) not in (None, [], False)}
        for each in found.findings[:4]
    ]
    print(f"      found    {found.error or json.dumps(shown)[:600]}")


def _summary(results: Sequence[Result]) -> None:
    """Print the totals, apart for sick and healthy runs."""
    sick, healthy, every = Score(), Score(), Score()
    for found in results:
        every.add(found)
        (healthy if found.case.is_healthy else sick).add(found)
    print(_line("all", every))
    print(_line("sick runs", sick))
    print(_line("healthy runs", healthy))
    if sick.cases:
        print(
            f"sick runs: right first {sick.right_first:.1%}, right second {sick.right_second:.1%}"
        )
    placed = [found.is_placed for found in results if found.is_placed is not None]
    if placed:
        print(f"right units, of right findings that have some: {sum(placed)}/{len(placed)}")
    both = [found.has_both for found in results if found.has_both is not None]
    if both:
        print(f"both of two causes found: {sum(both)}/{len(both)}")
    ratios = sorted(found.price_ratio for found in results if found.price_ratio is not None)
    if ratios:
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        middle = statistics.median(ratios)
        print(f"share found / price planted: median {middle:.2f}, 90 % in {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    raise SystemExit(main())
