"""Remove secrets from command lines, so that spans can contain them."""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "***"
_ENDS = ("token", "key", "pwd", "auth", "dsn")
_WITHIN = ("password", "passwd", "passphrase", "secret", "credential", "authorization")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ASSIGNED = re.compile(r"(?P<name>[^\s=:/'\"]{1,200})=(?P<value>.*)", re.DOTALL)
_HEADER = re.compile(r"(?P<name>[^\s=:/'\"]{1,200}):\s*(?P<value>.*)", re.DOTALL)
# The same forms, and `--name value`, inside a longer text: a shell command, JSON, the query of a
# URL. The lookbehind makes each name match only once, however long the text is.
_NAMED = re.compile(r"(?<![\w.\-])(?:--?[\w.\-]{1,200}\s+(?!\s|--)|[\w.\-]{1,200}[\"']?\s*[=:]\s*)")
_VALUE = re.compile(
    r"\"[^\"]*\"|'[^']*'|(?:(?:Bearer|Basic|Token)\s+)?(?:\\.|[^\s\"'&;\\])+",
    re.IGNORECASE | re.DOTALL,
)
# Formats that key issuers chose so that scanners can recognise the keys.
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abps]-|AKIA|ASIA|eyJ)[A-Za-z0-9_\-.]{12,}"
)
_WORD = re.compile(r"(\s+)")
_OPTION = re.compile(r"--?[^\s=]+")


def redacted(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `***` in place of secrets.

    It recognises values of options and variables whose name indicates a secret (`--hf-token X`,
    `--api_key=X`, `PASSWORD=X`, `Authorization: X`), also inside an argument (`sh -c`, JSON, the
    query of a URL), passwords in URLs, and tokens in a known format. A secret without such a name
    or format is not recognised.
    """
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        # `--key --verbose`: the option has no value.
        shown.append(REDACTED if is_secret and not argument.startswith("--") else _shown(argument))
        is_secret = bool(_OPTION.fullmatch(argument)) and names_a_secret(argument)
    return shown


def names_a_secret(name: str) -> bool:
    """Return whether a name denotes a secret: `--hf-token`, `apiKey`, but not `--max-tokens`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = "".join(words)
    return any(word.endswith(_ENDS) for word in words) or any(each in joined for each in _WITHIN)


def _shown(argument: str) -> str:
    for form, between in ((_ASSIGNED, "="), (_HEADER, ": ")):
        match = form.fullmatch(argument)
        if match is not None and names_a_secret(match["name"]):
            return f"{match['name']}{between}{REDACTED}"
    text = "".join(map(_without_user, _WORD.split(_without_values(argument))))
    return _KNOWN.sub(REDACTED, text)


def _without_values(text: str) -> str:
    pieces, at = [], 0
    for match in _NAMED.finditer(text):
        if match.start() < at or not names_a_secret(match[0]):
            continue
        value = _VALUE.match(text, match.end())
        if value is not None:
            pieces += [text[at : match.end()], REDACTED]
            at = value.end()
    return "".join([*pieces, text[at:]])


def _without_user(word: str) -> str:
    """Redact the user part of a URL if it has a password, which may contain an unencoded `@`."""
    scheme, sign, rest = word.partition("://")
    user, _, host = rest.rpartition("@")
    return f"{scheme}{sign}{REDACTED}@{host}" if ":" in user else word
