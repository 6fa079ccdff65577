"""Several trainings in one process: healthy ones, and causes in one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..building import Family, family
from ..causes import growing, spikes, steady, straggler
from ..clearness import are_spikes, is_growing
from ..drawing import Setting
from ..settings import APART, DDP, ONE, without_spikes
from ..trainings import FEWEST, in_one, several

_STRAGGLER: Final = straggler("INPUT_STRAGGLER", "data_load")


def _bare(setting: Setting) -> Setting:
    return replace(without_spikes(setting, 3 * FEWEST), is_bare=True)


def trainings() -> list[Family]:
    """Several trainings in one process, with other unit times and pauses between them."""
    settings = (("one rank", ONE), ("DDP", DDP), ("ranks apart", APART))
    causes = (
        ("input bound", steady("INPUT_BOUND", "data_load"), "INPUT_BOUND", None),
        ("spikes", spikes("forward", regular=False), "SPIKES", are_spikes),
        ("input spikes", spikes("data_load", regular=True, kind="INPUT_SPIKES"), "INPUT_SPIKES",
         are_spikes),
        ("slower and slower", growing("forward"), "SLOWING_DOWN", is_growing),
    )  # fmt: skip
    families = [
        family(f"several trainings, {name}", _bare(setting), of_plan=several)
        for name, setting in settings
    ]
    families += [
        family(f"several trainings, {cause}, {name}", _bare(setting), in_one(draw), kind=kind,
               of_plan=several, is_clear=is_clear)
        for cause, draw, kind, is_clear in causes
        for name, setting in settings[:2]
    ]  # fmt: skip
    families += [
        family(f"several trainings, straggler, {name}, DDP", _bare(DDP), draw,
               kind="INPUT_STRAGGLER", of_plan=several)
        for name, draw in (("input", _STRAGGLER), ("input of one training", in_one(_STRAGGLER)))
    ]  # fmt: skip
    return families
