"""The environments of the frameworks that the tests' own environment does not hold.

Each has its packages ahead of those of the tests' environment, so that torch is there once.
`make frameworks` makes them all.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.core.importers.stormlog.peers import STORMLOG
from tests.core.importers.traceml.peers import TRACEML
from tests.kit.environments import SITE_PACKAGES, Environment, EnvironmentUnavailableError
from tests.system.engines.spark import PYSPARK

_PINS = Path(__file__).with_name("pins")


def _beside(name: str, *requirements: str) -> Environment:
    """Return an environment whose exact versions `pins/<name>.txt` lists.

    Without requirements, exactly the listed packages are installed, without their dependencies.
    """
    return Environment(
        f"frameworks/{name}",
        pins=_PINS / f"{name}.txt",
        install=requirements,
        paths=(SITE_PACKAGES,),
    )


ENVIRONMENTS: dict[str, Environment] = {
    "lightning-oldest": _beside("lightning-oldest"),
    "transformers-oldest": _beside("transformers-oldest"),
    "ray": _beside("ray"),
    "trl": _beside("trl"),
    "sklearn": _beside("sklearn", "scikit-learn", "xgboost-cpu", "lightgbm", "pandas"),
    "sklearn-oldest": _beside("sklearn-oldest", "scikit-learn", "xgboost-cpu", "lightgbm"),
    "loggers": _beside("loggers"),
    "tensorflow": _beside("tensorflow"),
    "keras-oldest": _beside("keras-oldest"),
}
"""The environments by name: a framework, and `-oldest` if it holds the oldest supported version."""


def main() -> int:
    """Make every environment, those of the peers that need no torch of their own, and PySpark's."""
    for name, environment in {**ENVIRONMENTS, **STORMLOG, **TRACEML, "pyspark": PYSPARK}.items():
        try:
            environment.make()
        except EnvironmentUnavailableError as error:
            print(f"make frameworks: {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
