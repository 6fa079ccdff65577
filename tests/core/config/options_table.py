"""The table of docs/configuration.md: `python -m tests.core.config.options_table` writes it."""

from __future__ import annotations

from pathlib import Path

from cirron_otel.core.config.options import OPTIONS, Option

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"
BEGIN = "<!-- options: python -m tests.core.config.options_table writes this table -->\n"
END = "<!-- end of options -->\n"


def shown_default(option: Option) -> str:
    default = option.default
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    text = f"{default:_}" if isinstance(default, int) and default >= 10_000 else f"{default}"
    return f"`{text}`" if option.default is not None else "None"


def row(option: Option) -> str:
    files = [
        name
        for name, is_read in (
            ("cirron.yaml", option.key.in_project),
            ("config.toml", option.key.in_user_file),
        )
        if is_read
    ]
    unit = f" ({option.key.unit})" if option.key.unit else ""
    cells = [
        f"`{option.name}`",
        option.key.parser.type,
        shown_default(option),
        f"`{option.variable}`",
        ", ".join(files) or "–",
        option.key.meaning + unit,
    ]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    lines = [
        "| option | type | default | variable | files | meaning |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(row, OPTIONS)]) + "\n"


def written() -> str:
    """The table as it stands in the document."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(before + begin + table() + END + after)


if __name__ == "__main__":
    main()
