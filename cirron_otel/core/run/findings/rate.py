"""The price of an hour of a rank, for the costs of findings as money."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from ....errors import UsageError

_HOUR_NS: Final = 3600 * 10**9
_CURRENCY: Final = r"([^\s\d.,/+-]*)"
_PRICE: Final = re.compile(rf"{_CURRENCY}\s*([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s*{_CURRENCY}(?:/h)?")
_LONGEST: Final = 8
_TENTH: Final = 0.1
_LARGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of an hour of a rank."""

    per_hour: float
    currency: str = ""
    """The currency as the user wrote it; "" without one."""
    is_ahead: bool = False
    """Whether the currency precedes the number."""

    def amount(self, ns: int | None) -> float | None:
        """Return the price of a time, which is summed over all ranks."""
        return None if ns is None else ns / _HOUR_NS * self.per_hour

    def text(self, amount: float) -> str:
        """Return an amount with its currency: two decimals, or two digits below 0.1."""
        if amount >= _LARGE:
            number = f"{amount:,.0f}"
        elif amount >= _TENTH:
            number = f"{amount:.2f}"
        else:  # two digits that are not 0
            number = f"{Decimal(f'{amount:.2g}'):f}"
        if not self.currency:
            return number
        pair = (self.currency, number) if self.is_ahead else (number, self.currency)
        return ("" if _is_symbol(self.currency) else " ").join(pair)


def rate_of(text: str) -> Rate:
    """Return the price from a text such as `2.5/h`, `2.5 EUR/h` or `$2.5`. Raises UsageError."""
    match = _PRICE.fullmatch(text.strip())
    if match is not None:
        before, number, after = match.groups()
        currency = before or after
        is_currency = _is_symbol(currency) or (
            currency.isalpha() and len(currency) <= _LONGEST and currency != "h"
        )
        if not (before and after) and (not currency or is_currency) and float(number) > 0:
            return Rate(float(number), currency, bool(before))
    raise UsageError(
        f"{text!a} is not the price of an hour of a rank: expected a number above 0, as in 2.5/h,"
        ' "2.5 EUR/h" or $2.5'
    )


def _is_symbol(text: str) -> bool:
    """Return whether a text is the sign of a currency, such as $."""
    return len(text) == 1 and unicodedata.category(text) == "Sc"
