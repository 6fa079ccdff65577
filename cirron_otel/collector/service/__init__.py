"""The collector: one process that receives OTLP and Cirron JSON, keeps it, and hands it on.

```
options.py            CollectorOptions, the table: key, type, default, meaning
exporter_options.py   the part of it that says where things are sent
section.py            what the table is made of
values.py             what a value of it may look like
secret.py             values that are shown to nobody
config_file.py        the options of a run: one YAML file, and flags over it
substitution.py       ${env:NAME} in that file
validation.py         a tree of plain values to options, with the path of each wrong key
checks.py             what keys must be to each other; what is allowed and unwise
walking.py            the options as leaves, as a tree, without secrets; what a reload may take
targets.py            exporters as the exporter package wants them
metrics.py            what the collector counts, for Prometheus
metrics_push.py       the same figures over OTLP
logs.py               structured logs on stderr
```
"""
