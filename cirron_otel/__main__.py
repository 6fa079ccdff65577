"""`python -m cirron_otel` is the command `cirron-otel`."""

import sys

from .tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
