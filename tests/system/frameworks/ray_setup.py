"""The first stage of Ray's worker processes, in a process that has imported Ray once.

    python ray_setup.py ARGUMENT...

Ray starts each worker with a program (`setup_worker`) that imports Ray only to apply the variables
of a runtime environment, and then replaces itself with the worker's own interpreter. This file
takes its place. A server (`ray_cluster`) runs Ray's program up to the replacement, with the
arguments and variables of this process, which then executes the same command.
"""

import json
import os
import socket
import sys

VARIABLE = "RAY_TMPDIR"
"""The directory of the server's socket; the raylet passes the variable to its processes."""
NAME = "setup"


def main() -> None:
    """Replace this process with the command that Ray's program would execute."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.path.join(os.environ[VARIABLE], NAME))  # noqa: PTH118 - start-up time
        request = {"arguments": sys.argv[1:], "variables": dict(os.environ)}
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile() as answers:
            command, variables = json.loads(answers.readline())
    os.execvpe(command[0], command, variables)


if __name__ == "__main__":
    main()
