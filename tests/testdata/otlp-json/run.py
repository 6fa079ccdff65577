#!/usr/bin/env python3
"""Run a reader of OTLP/JSON over the conformance corpus beside this file. No dependencies.

    python3 run.py [OPTIONS] COMMAND [ARGUMENT ...]

COMMAND runs once per case, with the document on its standard input; an argument `{}` is replaced by
the path of the document instead. Exit code 0 means that the reader accepts the document, any other
code that it rejects it. A reader that is killed by a signal, or that takes too long, fails the
case. If the reader accepts a document and writes JSON to standard output, this must be the content
as OTLP/JSON; it is compared with the expected content. A reader that writes nothing is judged by
its exit code alone.

With `--lines`, COMMAND runs once. It gets the path of a document per line, and answers each with a
line of JSON: {"accepted": true, "output": {...}}; `output` is optional, and may also be a string
that contains the JSON.

The exit code is 0 if the reader conforms in all cases, 1 if not, and 2 for wrong usage.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OK, ACCEPTED, REJECTED, CONTENT, CRASHED = "ok", "accepted", "rejected", "content", "crashed"
MEANING = {
    ACCEPTED: "accepted, expected a rejection",
    REJECTED: "rejected, expected an acceptance",
    CONTENT: "accepted with other content than expected",
    CRASHED: "the reader crashed or took too long",
}

# The fields of each message: the name of a scalar type or of a message, in a list if repeated.
FIELDS = {
    "TracesData": {"resourceSpans": ["ResourceSpans"]},
    "ResourceSpans": {
        "resource": "Resource",
        "scopeSpans": ["ScopeSpans"],
        "schemaUrl": "string",
    },
    "Resource": {
        "attributes": ["KeyValue"],
        "droppedAttributesCount": "integer",
        "entityRefs": ["EntityRef"],
    },
    "EntityRef": {
        "schemaUrl": "string",
        "type": "string",
        "idKeys": ["string"],
        "descriptionKeys": ["string"],
    },
    "ScopeSpans": {"scope": "Scope", "spans": ["Span"], "schemaUrl": "string"},
    "Scope": {
        "name": "string",
        "version": "string",
        "attributes": ["KeyValue"],
        "droppedAttributesCount": "integer",
    },
    "Span": {
        "traceId": "id",
        "spanId": "id",
        "traceState": "string",
        "parentSpanId": "id",
        "flags": "integer",
        "name": "string",
        "kind": "integer",
        "startTimeUnixNano": "integer",
        "endTimeUnixNano": "integer",
        "attributes": ["KeyValue"],
        "droppedAttributesCount": "integer",
        "events": ["Event"],
        "droppedEventsCount": "integer",
        "links": ["Link"],
        "droppedLinksCount": "integer",
        "status": "Status",
    },
    "Event": {
        "timeUnixNano": "integer",
        "name": "string",
        "attributes": ["KeyValue"],
        "droppedAttributesCount": "integer",
    },
    "Link": {
        "traceId": "id",
        "spanId": "id",
        "traceState": "string",
        "attributes": ["KeyValue"],
        "droppedAttributesCount": "integer",
        "flags": "integer",
    },
    "Status": {"message": "string", "code": "integer"},
    "KeyValue": {"key": "string", "value": "AnyValue"},
    "ArrayValue": {"values": ["AnyValue"]},
    "KeyValueList": {"values": ["KeyValue"]},
}
MEMBERS = {
    "stringValue": "string",
    "boolValue": "bool",
    "intValue": "integer",
    "doubleValue": "double",
    "arrayValue": "ArrayValue",
    "kvlistValue": "KeyValueList",
    "bytesValue": "bytes",
}
DEFAULTS = ("", 0, {}, [])
ENVELOPES = ("ResourceSpans", "ScopeSpans")


def canonical(kind, value):
    """Return the content of a value as a form that is equal for equal content.

    Absent fields, fields with the default value, and empty messages are the same; an attribute
    value keeps its member even if it is empty. Unknown fields are left out. Raises ValueError,
    TypeError, AttributeError or KeyError if the value is not OTLP/JSON.
    """
    if kind == "AnyValue":
        return {
            key: canonical(of, value[key])
            for key, of in MEMBERS.items()
            if value.get(key) is not None
        }
    if kind in FIELDS:
        content = {}
        for key, of in FIELDS[kind].items():
            item = value.get(key)
            if item is None:
                continue
            if isinstance(of, list):
                found = [canonical(of[0], each) for each in item]
                if of[0] in ENVELOPES:  # receivers may ignore empty ones
                    found = [each for each in found if each]
            else:
                found = canonical(of, item)
            if found not in DEFAULTS or isinstance(found, bool):
                content[key] = found
        # A value without a member and an absent value are the same here.
        return content
    return scalar(kind, value)


def scalar(kind, value):
    """Return the canonical form of a scalar."""
    if kind == "integer":
        if isinstance(value, float) and value != 0:
            raise ValueError(f"a double for an integer: {value}")
        return int(value)
    if kind == "double":
        return repr(float(value))
    if kind == "id":
        text = bytes.fromhex(value).hex()
        return text if text.strip("0") else ""
    if kind == "bytes":
        return base64.b64encode(base64.b64decode(value, validate=True)).decode()
    if not isinstance(value, bool if kind == "bool" else str):
        raise TypeError(f"expected {kind}, found {value!r}")
    return value


def judge(case, accepted, output):
    """Return the result of a case: `output` is the reader's output as JSON, or None."""
    expected = [each["accept"] for each in case["outcomes"] if "accept" in each]
    if not accepted:
        return OK if len(expected) < len(case["outcomes"]) else REJECTED
    if not expected:
        return ACCEPTED
    if output is None:
        return OK
    try:
        found = canonical("TracesData", output)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return CONTENT
    contents = [canonical("TracesData", each) for each in expected]
    return OK if found in contents else CONTENT


def read_output(data):
    """Return a reader's output as JSON; None if it is empty, a string if it is not JSON."""
    try:
        return json.loads(data, parse_int=integer) if data.strip() else None
    except (ValueError, RecursionError):
        return "not JSON"


def integer(text):
    """Return an integer of JSON; a double for -0, whose sign counts in a double field."""
    return -0.0 if text == "-0" else int(text)


def run_each(command, cases, timeout, jobs):
    """Run the command once per case."""

    def one(case):
        path = HERE / case["file"]
        named = "{}" in command
        arguments = [str(path) if each == "{}" else each for each in command]
        with Path(os.devnull if named else path).open("rb") as stdin:
            try:
                done = subprocess.run(
                    arguments,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return CRASHED
        if done.returncode < 0 or done.returncode > 128:
            return CRASHED
        return judge(case, done.returncode == 0, read_output(done.stdout))

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, cases))


def run_lines(command, cases):
    """Run the command once for all cases."""
    results = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        for case in cases:
            try:
                reader.stdin.write(os.fsencode(HERE / case["file"]) + b"\n")
                reader.stdin.flush()
                answer = json.loads(reader.stdout.readline())
                output = answer.get("output")
                if isinstance(output, str):
                    output = read_output(output)
                results.append(judge(case, answer["accepted"], output))
            except (OSError, ValueError, KeyError, TypeError):
                results.append(CRASHED)
        with contextlib.suppress(OSError):
            reader.stdin.close()
    return results


def report(cases, results):
    """Print the cases in which the reader does not conform, and a line of totals per group."""
    by_group = {}
    for number, case in enumerate(cases):
        result = results[number]
        by_group.setdefault(case["group"], []).append(result)
        if result != OK:
            print(f"{case['name']}: {MEANING[result]}: {case['source']}")
    for group, found in [*by_group.items(), ("all", results)]:
        print(f"{group:10} {found.count(OK):4} of {len(found):4}")


def main():
    """Parse the arguments, run the reader, and print the results."""
    parser = argparse.ArgumentParser(description="Run a reader of OTLP/JSON over the corpus.")
    parser.add_argument("--lines", action="store_true", help="run COMMAND once, a path per line")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--json", metavar="FILE", help="also write the result of each case to FILE")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("name the command of a reader")
    index = json.loads((HERE / "index.json").read_text(encoding="utf-8"))
    cases = [case for case in index["cases"] if options.only in case["name"]]
    if not cases:
        parser.error(f"no case has {options.only!r} in its name")
    try:
        if options.lines:
            results = run_lines(command, cases)
        else:
            results = run_each(command, cases, options.timeout, options.jobs)
    except OSError as error:
        parser.error(f"{command[0]} cannot be run: {error.strerror}")
    report(cases, results)
    if options.json:
        found = {case["name"]: results[number] for number, case in enumerate(cases)}
        Path(options.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if set(results) == {OK} else 1


if __name__ == "__main__":
    sys.exit(main())
