"""The tables of docs/collector.md: `python -m tests.collector.service.tables` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from cirron_otel.collector.service.metrics import METRICS, Metric, MetricKind
from cirron_otel.collector.service.validation import Field, table
from cirron_otel.core.config.parsing import SIZE

DOCUMENT = Path(__file__).parents[3] / "docs" / "collector.md"
BEGIN = "<!-- {}: python -m tests.collector.service.tables writes this table -->\n"
END = "<!-- end of {} -->\n"
_UNITS = {"s": "s", "By": "bytes", "1": ""}


def shown_default(field: Field) -> str:
    assert field.key is not None
    default = field.default
    if default is msgspec.NODEFAULT:
        return "required"
    if default is None:
        return "null"
    if default in ((), {}):
        return "empty"
    if isinstance(default, tuple) and field.key.parser.type.startswith("list"):
        return ", ".join(f"`{each}`" for each in default)
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if field.key.parser is SIZE or field.key.unit == "bytes":
        for size, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (10**9, "GB")):
            if default % size == 0:
                return f"`{default // size}{unit}`"
    text = f"{default:_}" if isinstance(default, int) and default >= 10_000 else f"{default}"
    return f"`{text.removesuffix('.0')}`"


def row(path: str, field: Field) -> str:
    key = field.key
    assert key is not None
    unit = f" ({key.unit})" if key.unit else ""
    cells = [
        f"`{path}`",
        key.parser.type,
        shown_default(field),
        "at once" if key.at_once else "restart",
        key.meaning + unit,
    ]
    return f"| {' | '.join(cells)} |"


def options() -> str:
    lines = ["| key | type | default | reload | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(row(*each) for each in table())]) + "\n"


def metric_row(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.kind is MetricKind.COUNTER else "")
    unit = f" ({_UNITS[metric.unit]})" if _UNITS[metric.unit] else ""
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{name}` | {metric.kind} | {labels} | {metric.meaning}{unit} |"


def metrics() -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(metric_row, METRICS)]) + "\n"


TABLES = {"options": options, "metrics": metrics}


def written(name: str) -> str:
    """A table as it stands in the document."""
    return DOCUMENT.read_text().partition(BEGIN.format(name))[2].partition(END.format(name))[0]


def documented_keys() -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", written("options"), re.MULTILINE)


def main() -> None:
    for name, make in TABLES.items():
        before, begin, rest = DOCUMENT.read_text().partition(BEGIN.format(name))
        end = END.format(name)
        DOCUMENT.write_text(before + begin + make() + end + rest.partition(end)[2])


if __name__ == "__main__":
    main()
