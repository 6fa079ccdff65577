"""`--fail-on`: the findings for which a command exits with code 6."""

# ruff: noqa: PLC0415 - imports in functions, so that commands start faster

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ...errors import InputError, UsageError
from ..present.formatting import printable
from . import output
from .sources import shown_source

if TYPE_CHECKING:
    from ...core.run.findings.choices import Choices, Pattern
    from ...core.run.findings.finding import Finding, Severity
    from ..present.document import Document
    from .engines import EngineSource

F = TypeVar("F", bound=Callable[..., Any])

FAILED_VERDICT: Final = 6
"""The exit code if a finding or a verdict is one of `--fail-on`."""
_NEW: Final = "new"
_SEVERITIES: Final[dict[str, Severity]] = {
    "warning": "warning", "critical": "critical", "failure": "failure",
    "warn": "warning", "crit": "critical",
}  # fmt: skip
_MOST_BYTES: Final = 64 << 20


class _Condition(click.ParamType):  # type: ignore[type-arg]
    """A severity, `new`, or a kind of finding, with the phase or scope if wanted."""

    name = "condition"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ...core.run.findings.choices import pattern_of

        if value != _NEW and value not in _SEVERITIES:
            try:
                pattern_of(value)
            except UsageError as error:
                self.fail(
                    f"expected {', '.join(_SEVERITIES)}, {_NEW}, or KIND; {error}", param, ctx
                )
        return value


_fail_on_option: Callable[[F], F] = click.option(
    "--fail-on",
    "fail_on",
    type=_Condition(),
    multiple=True,
    metavar="SEVERITY|KIND[:NAME]|new",
    help="Exit with code 6 if a finding has this severity or a worse one, is of this kind, or is"
    " new since --baseline. Can be given several times.",
)
_baseline_option: Callable[[F], F] = click.option(
    "--baseline",
    "baseline",
    metavar="FILE|SRC",
    help="With --fail-on new: the run to compare with, as a document of --json or a recording.",
)


def fail_on_options(command: F) -> F:
    """Add the options `--fail-on` and `--baseline` to a command."""
    return _fail_on_option(_baseline_option(command))


def severity_of(fail_on: Sequence[str]) -> str | None:
    """Return the least severe one of some severities; None for no condition.

    Raises UsageError for another condition, which verdicts do not have.
    """
    from ...core.run.findings.finding import SEVERITIES

    for each in fail_on:
        if each not in _SEVERITIES:
            raise UsageError(
                f"--fail-on {each}: with --rules traceml, expected {', '.join(_SEVERITIES)}"
            )
    return max((_SEVERITIES[each] for each in fail_on), key=SEVERITIES.index, default=None)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of `--fail-on`."""

    severity: str | None = None
    """The least severe one; None if no severity is named."""
    patterns: tuple[Pattern, ...] = ()
    baseline: Mapping[str, str] | None = None
    """The severities of the findings of the earlier run by their ids; None without `new`."""
    baseline_name: str = ""
    ignored: tuple[Pattern, ...] = ()
    """The findings of `--ignore`, which are not among those to be checked."""

    def is_failure(self, finding: Finding) -> bool:
        """Return whether a finding meets a condition."""
        is_severe = self.severity is not None and _is_severe(finding.severity, self.severity)
        return is_severe or self._is_named(finding) or self.is_new(finding)

    def _is_named(self, finding: Finding) -> bool:
        from ...core.run.findings.thresholds import is_notice

        is_due = finding.severity != "notice" or is_notice(finding.kind)
        return is_due and any(each.matches(finding) for each in self.patterns)

    def is_new(self, finding: Finding) -> bool:
        """Return whether the earlier run lacks a finding, or has it as a harmless notice.

        A notice is never new. One of the earlier run that is a warning now is near its threshold
        in both runs.
        """
        if self.baseline is None or finding.severity == "notice":
            return False
        earlier = self.baseline.get(finding.id)
        return earlier is None or (earlier == "notice" and finding.severity != "warning")

    def code(self, documents: Sequence[Document], code: int) -> int:
        """Return the exit code for the findings of some runs; `code` if none is a failure.

        Each new finding is named on stderr, and each phase or scope of a condition that no run has.
        """
        self._note_names(documents)
        findings = (finding for document in documents for finding in document.findings)
        failures = [each for each in findings if self.is_failure(each)]
        for each in failures:
            if self.is_new(each):
                output.message(f"new since {self.baseline_name}: {printable(each.sentence)}")
        return FAILED_VERDICT if failures else code

    def _note_names(self, documents: Iterable[Document]) -> None:
        named = [
            (option, each)
            for option, some in (("--ignore", self.ignored), ("--fail-on", self.patterns))
            for each in some
            if each.name is not None
        ]
        names = set().union(*(each.scope_names for each in documents)) if named else set()
        for option, each in named:
            if each.name not in names:
                output.message(
                    f"note: {option} {printable(str(each))}: no phase or scope has this name"
                )


def _is_severe(severity: str, least: str) -> bool:
    from ...core.run.findings.finding import SEVERITIES

    order: Sequence[str] = SEVERITIES
    return order.index(severity) <= order.index(least)


def conditions_of(
    fail_on: Sequence[str],
    baseline: str | None,
    source: EngineSource,
    choices: Choices,
    unit: str | None,
) -> Conditions:
    """Return the conditions; the baseline is read if they need it, in the same way as the source.

    Raises UsageError if `new` or the baseline is missing, or both are standard input, and the
    errors of reading a recording.
    """
    from ...core.run.findings.choices import pattern_of

    if (_NEW in fail_on) != (baseline is not None):
        raise UsageError("--fail-on new and --baseline FILE need each other")
    if baseline == source.name == "-":
        raise UsageError("only one of SRC and --baseline can be standard input")
    severities = [each for each in fail_on if each in _SEVERITIES]
    patterns = [pattern_of(e) for e in fail_on if e != _NEW and e not in _SEVERITIES]
    return Conditions(
        severity_of(severities),
        tuple(patterns),
        None if baseline is None else _severities(baseline, source, choices, unit),
        "" if baseline is None else printable(shown_source(baseline)),
        choices.ignored,
    )


def _severities(
    baseline: str, source: EngineSource, choices: Choices, unit: str | None
) -> dict[str, str]:
    """Return the severities of the findings of a document, or of the last run of a recording."""
    from .concluding import in_python
    from .engines import EngineSource

    found = _of_document(baseline)
    if found is None:
        source_format = None if source.name == "-" else source.format  # as `diff` applies --from
        place = EngineSource(baseline, source_format)
        of_source = in_python(place, choices, unit, lists_others=False)
        if not any(document.figures.spans for _, document in of_source.runs):
            raise InputError(
                f"--baseline {shown_source(baseline)}: it has no run; expected a recording, or the"
                " document of `report --json`"
            )
        found = [
            finding.to_json()
            for _, document in of_source.runs
            for finding in (*document.findings, *document.ignored)
        ]
    return {
        str(each.get("id")): str(each.get("severity")) for each in found if isinstance(each, dict)
    }


def _of_document(path: str) -> list[Any] | None:
    """Return the findings in a file written by `report --json` or `diagnose --json`.

    None if it is something else. Raises UsageError if it has several runs.
    """
    try:
        file = Path(path)
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return None
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    runs = value.get("runs") if isinstance(value, dict) else None
    if isinstance(runs, list):
        if len(runs) != 1:
            raise UsageError(
                f"--baseline {path}: expected the document of one run, not {len(runs)}"
            )
        value = runs[0]
    if not isinstance(value, dict) or "rules_version" not in value:
        return None
    lists = [value.get(key) for key in ("findings", "ignored")]
    return [each for some in lists if isinstance(some, list) for each in some]
