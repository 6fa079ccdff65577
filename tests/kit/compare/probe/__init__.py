"""The outputs of an installed cirron-otel. It imports nothing else of the checkout.

`python -m probe CORPUS OUT` runs in a Python that has the package, with this package's parent on
`PYTHONPATH`.
"""
