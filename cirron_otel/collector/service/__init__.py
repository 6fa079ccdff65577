"""The collector's service: it receives OTLP and Cirron JSON, stores them, and delivers them.

```
options.py            CollectorOptions, the table: key, type, default, meaning
exporter_options.py   the sections of exporters and of pushed metrics in that table
values.py             parsers, in addition to those of core/config/parsing.py
config_file.py        loads one YAML file, and the flags that override it
substitution.py       ${env:NAME} in that file
validation.py         converts a tree of plain values to options; problems have the path of the key
checks.py             rules between keys, and warnings about unwise options
options_tree.py       the options as leaves and as a tree; secrets; the changes of a reload
targets.py            converts exporters to settings of targets
metrics.py            the collector's metrics, for Prometheus
metrics_push.py       the same metrics over OTLP
logs.py               structured logs on stderr
```
"""
