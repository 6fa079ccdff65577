"""The package's reader of OTLP/JSON as a command for the corpus's runner.

Without an argument it reads a document from standard input. With `--lines` it reads the path of a
document per line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cirron_otel.core.otlp.json_codec import traces_from_json, traces_to_json
from cirron_otel.errors import InputError


def main() -> int:
    """Return the exit code: 0 if all is read, 1 if the document is refused."""
    if sys.argv[1:] == ["--lines"]:
        for line in sys.stdin:
            answer: dict[str, object] = {"accepted": False}
            try:
                message, _ = traces_from_json(Path(line.removesuffix("\n")).read_bytes())
                answer = {"accepted": True, "output": json.loads(traces_to_json(message))}
            except InputError as error:
                answer["message"] = str(error)
            print(json.dumps(answer), flush=True)
        return 0
    try:
        message, _ = traces_from_json(sys.stdin.buffer.read())
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(traces_to_json(message) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
