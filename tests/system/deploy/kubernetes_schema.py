"""The JSON schema of the Kubernetes objects in deploy/kubernetes, from a complete set of schemas.

    python -m tests.system.deploy.kubernetes_schema _definitions.json > kubernetes-1.34.json

`_definitions.json` is that of `v1.34.0-local-strict` in the package kubernetes-validate 1.37.0
(Apache 2.0), which is generated from the OpenAPI document of Kubernetes (Apache 2.0). Descriptions
are left out, and only definitions that are used are kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).with_name("kubernetes-1.34.json")
KINDS = {
    ("apps/v1", "DaemonSet"): "io.k8s.api.apps.v1.DaemonSet",
    ("apps/v1", "StatefulSet"): "io.k8s.api.apps.v1.StatefulSet",
    ("policy/v1", "PodDisruptionBudget"): "io.k8s.api.policy.v1.PodDisruptionBudget",
    ("networking.k8s.io/v1", "NetworkPolicy"): "io.k8s.api.networking.v1.NetworkPolicy",
    ("v1", "ConfigMap"): "io.k8s.api.core.v1.ConfigMap",
    ("v1", "Namespace"): "io.k8s.api.core.v1.Namespace",
    ("v1", "Secret"): "io.k8s.api.core.v1.Secret",
    ("v1", "Service"): "io.k8s.api.core.v1.Service",
}
"""The definition of each kind of object, by its `apiVersion` and `kind`."""
_REF, _PREFIX = "$ref", "#/$defs/"


def reduced(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the definitions of KINDS and of everything that they refer to."""
    kept: dict[str, Any] = {}
    left = list(KINDS.values())
    while left:
        name = left.pop()
        if name not in kept:
            kept[name] = _without_descriptions(definitions[name])
            left += _references(kept[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": kept}


def _without_descriptions(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_descriptions(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _PREFIX + each.rpartition("/")[2] if key == _REF else _without_descriptions(each)
        for key, each in value.items()
        if not (key == "description" and isinstance(each, str))
    }


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for each in value for name in _references(each)]
    if not isinstance(value, dict):
        return []
    names = [value[_REF].removeprefix(_PREFIX)] if _REF in value else []
    return names + [name for each in value.values() for name in _references(each)]


if __name__ == "__main__":
    loaded = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(reduced(loaded["$defs"]), separators=(",", ":"), sort_keys=True))
