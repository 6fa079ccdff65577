"""Command lines without their secrets: what a span may say of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "***"
_ENDS = ("token", "key", "pwd", "auth", "dsn")
_WITHIN = ("password", "passwd", "passphrase", "secret", "credential", "authorization")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ASSIGNED = re.compile(r"(?P<name>[^\s=:/'\"]{1,200})=(?P<value>.*)", re.DOTALL)
_HEADER = re.compile(r"(?P<name>[^\s=:/'\"]{1,200}):\s*(?P<value>.*)", re.DOTALL)
# The same, and `--name value`, within a text: a shell's line, JSON, the query of a URL. A name
# begins where no name is before it, so that each is looked at once, however long the text is.
_NAMED = re.compile(r"(?<![\w.\-])(?:--?[\w.\-]{1,200}\s+(?!\s|--)|[\w.\-]{1,200}[\"']?\s*[=:]\s*)")
_VALUE = re.compile(
    r"\"[^\"]*\"|'[^']*'|(?:(?:Bearer|Basic|Token)\s+)?(?:\\.|[^\s\"'&;\\])+",
    re.IGNORECASE | re.DOTALL,
)
# Forms of keys that are told by themselves: their issuers chose them so that scanners find them.
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abps]-|AKIA|ASIA|eyJ)[A-Za-z0-9_\-.]{12,}"
)
_WORD = re.compile(r"(\s+)")
_OPTION = re.compile(r"--?[^\s=]+")


def redacted(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `***` for the values of options and variables that name a secret.

    `--hf-token X`, `--api_key=X`, `PASSWORD=X`, `Authorization: X`, within an argument, too
    (`sh -c`, JSON, the query of a URL), passwords in URLs, and tokens that are told by their form.
    What stands by itself and looks like nothing is not recognised.
    """
    made: list[str] = []
    is_secret = False
    for argument in arguments:
        # `--key --verbose`: the option stands for itself, and has no value.
        made.append(REDACTED if is_secret and not argument.startswith("--") else _shown(argument))
        is_secret = bool(_OPTION.fullmatch(argument)) and names_a_secret(argument)
    return made


def names_a_secret(name: str) -> bool:
    """Whether a name is that of a secret: `--hf-token`, `apiKey`; `--max-tokens` is not."""
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = "".join(words)
    return any(word.endswith(_ENDS) for word in words) or any(each in joined for each in _WITHIN)


def _shown(argument: str) -> str:
    for form, between in ((_ASSIGNED, "="), (_HEADER, ": ")):
        found = form.fullmatch(argument)
        if found is not None and names_a_secret(found["name"]):
            return f"{found['name']}{between}{REDACTED}"
    text = "".join(map(_without_user, _WORD.split(_without_values(argument))))
    return _KNOWN.sub(REDACTED, text)


def _without_values(text: str) -> str:
    made, at = [], 0
    for found in _NAMED.finditer(text):
        if found.start() < at or not names_a_secret(found[0]):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None:
            made += [text[at : found.end()], REDACTED]
            at = value.end()
    return "".join([*made, text[at:]])


def _without_user(word: str) -> str:
    """A URL without who asks, where that has a password; an `@` may be in it, unencoded."""
    scheme, sign, rest = word.partition("://")
    user, _, host = rest.rpartition("@")
    return f"{scheme}{sign}{REDACTED}@{host}" if ":" in user else word
