"""Check Python and the installed packages against the requirements in the packages' metadata."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

from .check import Check, failed, listed, ok, warning

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

DISTRIBUTION = "cirron-otel"
_ROOTS = ("opentelemetry-", DISTRIBUTION)
_SHOWN = (
    "opentelemetry-sdk", "opentelemetry-exporter-otlp", "protobuf", "grpcio", "requests", "torch",
)  # fmt: skip


def examine_python() -> Check:
    """Check the interpreter's version against the package's metadata."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415

    finding = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform}"
    specifier = _field(metadata.metadata(DISTRIBUTION), "Requires-Python")
    version = ".".join(map(str, sys.version_info[:3]))  # without distributors' suffixes
    if not SpecifierSet(specifier).contains(version, prereleases=True):
        return failed("python", f"{finding}, expected {specifier}", "use another Python")
    return ok("python", finding, version=platform.python_version(), wanted=specifier)


def examine_packages(needed: tuple[str, ...]) -> Iterator[Check]:
    """Check that the installed packages are compatible, and that the `needed` extras are
    installed.
    """
    versions = _installed()
    shown = [f"{name} {versions[name]}" for name in (DISTRIBUTION, *_SHOWN) if name in versions]
    problems = [
        each for name in versions if name.startswith(_ROOTS) for each in _unmet(name, versions)
    ]
    details = {
        "versions": {name: versions[name] for name in (DISTRIBUTION, *_SHOWN) if name in versions}
    }
    if problems:
        yield warning(
            "packages",
            f"{', '.join(shown)}; {listed(problems, 4)}",
            "install the required versions: pip check lists them",
            **details,
        )
    else:
        yield ok("packages", ", ".join(shown), **details)
    for extra in needed:
        missing = _missing(extra, versions)
        if missing:
            yield failed(
                "packages",
                f"the extra {extra} is needed, but {listed(missing)} is not installed",
                f"pip install 'cirron-otel[{extra}]'",
            )
    if "cirron-sdk" in versions:
        yield ok(
            "packages",
            f"cirron-sdk {versions['cirron-sdk']} is also installed: a program should trace with"
            " only one of the two",
        )


def _field(data: Any, name: str) -> str:
    """Return a field of a distribution's metadata; "" if it is missing from a broken
    installation.
    """
    return "" if data is None else data.get(name) or ""


def _installed() -> dict[str, str]:
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    versions: dict[str, str] = {}
    for each in metadata.distributions():
        name = _field(each.metadata, "Name")
        if name:
            versions.setdefault(canonicalize_name(name), each.version)
    return versions


def _unmet(name: str, versions: dict[str, str]) -> Iterator[str]:
    """Yield the unmet requirements of a distribution; a package that only an extra requires may be
    missing.
    """
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    for text in metadata.requires(name) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        other = canonicalize_name(requirement.name)
        is_always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        version = versions.get(other)
        if version is None:
            if is_always:
                yield f"{name} requires {other}, which is not installed"
        elif (is_always or name == DISTRIBUTION) and not _is_in(requirement.specifier, version):
            yield f"{name} requires {other} {requirement.specifier}, found {version}"


def _is_in(wanted: SpecifierSet, version: str) -> bool:
    from packaging.version import InvalidVersion  # noqa: PLC0415

    try:
        return wanted.contains(version, prereleases=True)
    except InvalidVersion:
        return True  # a custom build, whose version cannot be compared


def _missing(extra: str, versions: dict[str, str]) -> list[str]:
    """Return the packages of an extra that are not installed."""
    from packaging.requirements import Requirement  # noqa: PLC0415
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    return [
        name
        for each in requirements
        if each.marker is not None
        and each.marker.evaluate({"extra": extra})
        and not each.marker.evaluate({"extra": ""})
        and (name := canonicalize_name(each.name)) not in versions
    ]
