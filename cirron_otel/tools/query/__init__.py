"""The query APIs of Jaeger and Tempo as a source of OTLP.

`docs/cli.md` describes the addresses, `docs/backends.md` what each backend keeps. `fetch` needs the
extra `otlp`.
"""
