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
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*:[^@\s]*(?=@)")
# Forms of keys that are told by themselves: their issuers chose them so that scanners find them.
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abps]-|AKIA|ASIA|eyJ)[A-Za-z0-9_\-.]{12,}"
)
_OPTION = re.compile(r"--?[^\s=]+")


def redacted(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `***` for the values of options and variables that name a secret.

    `--hf-token X`, `--api_key=X`, `PASSWORD=X`, `Authorization: X`, passwords in URLs, and tokens
    that are told by their form. What stands by itself and looks like nothing is not recognised.
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
    return _KNOWN.sub(REDACTED, _USER_INFO.sub(REDACTED, argument))
