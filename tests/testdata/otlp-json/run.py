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
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
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
            raise ValueError("a double for an integer: %r" % value)
        return int(value)
    if kind == "double":
        return repr(float(value))
    if kind == "id":
        text = bytes.fromhex(value).hex()
        return text if text.strip("0") else ""
    if kind == "bytes":
        return base64.b64encode(base64.b64decode(value, validate=True)).decode()
    if not isinstance(value, bool if kind == "bool" else str):
        raise TypeError("expected %s, found %r" % (kind, value))
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
        path = os.path.join(HERE, case["file"])
        named = "{}" in command
        arguments = [path if each == "{}" else each for each in command]
        with open(os.devnull if named else path, "rb") as stdin:
            try:
                done = subprocess.run(
                    arguments,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    timeout=timeout,
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
                reader.stdin.write(os.path.join(HERE, case["file"]).encode() + b"\n")
                reader.stdin.flush()
                answer = json.loads(reader.stdout.readline())
                output = answer.get("output")
                if isinstance(output, str):
                    output = read_output(output)
                results.append(judge(case, answer["accepted"], output))
            except (OSError, ValueError, KeyError, TypeError):
                results.append(CRASHED)
        try:
            reader.stdin.close()
        except OSError:
            pass
    return results


def report(cases, results):
    """Print the cases in which the reader does not conform, and a line of totals per group."""
    for case, result in zip(cases, results):
        if result != OK:
            print("%s: %s: %s" % (case["name"], MEANING[result], case["source"]))
    for group in dict.fromkeys(case["group"] for case in cases):
        own = [result for case, result in zip(cases, results) if case["group"] == group]
        print("%-10s %4d of %4d" % (group, own.count(OK), len(own)))
    print("%-10s %4d of %4d" % ("all", results.count(OK), len(results)))


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
    with open(os.path.join(HERE, "index.json"), encoding="utf-8") as file:
        cases = [case for case in json.load(file)["cases"] if options.only in case["name"]]
    if not cases:
        parser.error("no case has %r in its name" % options.only)
    try:
        if options.lines:
            results = run_lines(command, cases)
        else:
            results = run_each(command, cases, options.timeout, options.jobs)
    except OSError as error:
        parser.error("%s cannot be run: %s" % (command[0], error.strerror))
    report(cases, results)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({case["name"]: each for case, each in zip(cases, results)}, file, indent=1)
    return 0 if set(results) == {OK} else 1


if __name__ == "__main__":
    sys.exit(main())
