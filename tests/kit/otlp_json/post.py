"""An OTLP/HTTP endpoint as a reader for the corpus's runner: `post.py URL [FILE]`.

It reads the path of a document per line, and posts it. FILE is the output of a Collector's file
exporter: the content that the endpoint made of the document.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_WAIT_S = 2.0
"""The time after which a Collector has written no content of a document: it exports only spans."""
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main() -> None:
    """Answer each path with a line of JSON."""
    url, *output = sys.argv[1:]
    written = Path(output[0]) if output else None
    for line in sys.stdin:
        position = written.stat().st_size if written is not None and written.exists() else 0
        answer = post(url, Path(line.removesuffix("\n")).read_bytes())
        if answer.get("accepted") and written is not None:
            answer["output"] = _content(written, position)
        print(json.dumps(answer), flush=True)


def post(url: str, data: bytes) -> dict[str, Any]:
    """Post a document; return whether it was accepted, or the error if there is no response."""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with _opener.open(request, timeout=60) as response:
            partial = json.loads(response.read() or b"{}").get("partialSuccess") or {}
    except urllib.error.HTTPError as error:
        return {"accepted": False, "message": error.read().decode(errors="replace")}
    except (OSError, ValueError) as error:
        return {"error": str(error)}
    return {"accepted": not int(partial.get("rejectedSpans") or 0)}


def _content(written: Path, position: int) -> str | None:
    """Return the content that the Collector appends after `position`; None if there is none.

    Bytes that are not UTF-8 become halves of surrogate pairs, so that the content differs.
    """
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        data = written.read_bytes()[position:] if written.exists() else b""
        if data.endswith(b"\n"):
            return data.decode(errors="surrogateescape")
        time.sleep(0.005)
    return None


if __name__ == "__main__":
    main()
