"""The tensors of a quantity that differs in two runs, and how far they are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ....errors import InputError
from ....ulp import FORMATS, ulp_distance
from ...records.digest_marks import DigestMark, Layouts, TensorDigest, digest_mark
from ...records.verbatim import mark_records, record_at
from ...spool.blobs import blob_key
from ...spool.reader import SpoolReader
from .comparing import Divergence
from .kept_tensors import kept_distance
from .observed_steps import Observation
from .recorded_steps import Place, RecordedSteps

_LONGEST: Final = 60
"""The most characters of a name in a text."""


class TensorDifference(NamedTuple):
    """The first tensor that differs."""

    name: str
    ulp: int | None
    """The largest distance of the known elements; None if it is not known, or if exactly one of two
    elements is a NaN."""
    mismatch: str | None = None
    """The tensors that the runs have in this place, if these are not of one name, dtype and
    shape."""


class DigestMarks:
    """The marks with the digests of a run, with those of its tensors."""

    def __init__(
        self, reader: SpoolReader, names: Sequence[str], layouts: Mapping[str, Place]
    ) -> None:
        """`names` are those of the batches; `layouts` has the marks that name their tensors."""
        self._reader, self._names, self._places = reader, names, layouts
        self._layouts = Layouts()

    def mark(self, observation: Observation) -> DigestMark | None:
        """Return the mark of an observation; None if its batch has been removed."""
        return self._mark_at(observation.file, observation.position)

    def tensors(self, mark: DigestMark) -> list[TensorDigest] | None:
        """Return the digests of a mark's tensors; None if they were not recorded."""
        if mark.tensors is None:
            return None
        place = self._places.get(str(mark.tensors.get("layout")))
        named = None if place is None else self._mark_at(*place)
        if named is not None and named.tensors is not None:
            self._layouts.add(named.tensors)
        try:
            return self._layouts.unpack(mark.tensors)
        except InputError:
            return None

    def kept_file(self, mark: DigestMark) -> Path | None:
        """Return the file that contains the tensors of a mark; None if the spool has none."""
        key = None if mark.blob_uri is None else blob_key(mark.blob_uri, "", "")
        path = None if key is None else self._reader.paths.snapshots / key.directory / key.file
        return path if path is not None and path.is_file() else None

    def _mark_at(self, file: int, position: int) -> DigestMark | None:
        batch = self._reader.read(self._names[file], check=False)
        record = None if batch is None else record_at(mark_records(batch.data), position)
        if record is None:
            return None
        return digest_mark(record.get("name"), record.get("value"), record.get("attrs"))


class RunDigests(DigestMarks):
    """The digests of a recorded run."""

    def __init__(
        self,
        reader: SpoolReader,
        names: Sequence[str],
        layouts: Mapping[str, Place],
        steps: RecordedSteps,
    ) -> None:
        super().__init__(reader, names, layouts)
        self.steps = steps


def locate_tensor(divergence: Divergence, a: DigestMarks, b: DigestMarks) -> None:
    """Complete a difference of two digests: its tensor, its distance, and the step's number."""
    one, other = divergence.sides
    first = None if one is None or one.value is None else a.mark(one)
    second = None if other is None or other.value is None else b.mark(other)
    if first is not None:
        divergence.step = first.step
    if (
        first is None
        or second is None
        or first.quantity != second.quantity
        or divergence.has_numbers
    ):
        return
    tensors, others = a.tensors(first), b.tensors(second)
    if tensors is None or others is None:
        return
    tensor = first_tensor(divergence.considered(tensors), divergence.considered(others))
    if tensor is None:
        return
    divergence.tensor, divergence.ulp, divergence.mismatch = tensor
    files = a.kept_file(first), b.kept_file(second)
    if files[0] is not None and files[1] is not None:
        distance = kept_distance(files[0], files[1], tensor.name)
        divergence.ulp = distance.ulp if distance is not None else tensor.ulp


def first_tensor(a: Sequence[TensorDigest], b: Sequence[TensorDigest]) -> TensorDifference | None:
    """Return the first tensor whose name, dtype, shape or bits differ."""
    names = {each.name for each in b}
    for one, other in zip(a, b, strict=False):
        if one.name != other.name:
            name = other.name if one.name in names else one.name
            return TensorDifference(name, None, _mismatch(one, other))
        if (one.digest, one.dtype, one.shape) != (other.digest, other.dtype, other.shape):
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                return TensorDifference(one.name, None, _mismatch(one, other))
            return TensorDifference(one.name, _farthest(one, other))
    if len(a) == len(b):
        return None
    first = next(iter([*a[len(b) :], *b[len(a) :]]))
    sides = (first, None) if len(a) > len(b) else (None, first)
    return TensorDifference(first.name, None, _mismatch(*sides))


def _mismatch(a: TensorDigest | None, b: TensorDigest | None) -> str:
    has = [
        "nothing more"
        if each is None
        else f"{each.name[:_LONGEST]}, {each.dtype} {list(each.shape)}"
        for each in (a, b)
    ]
    return f"A has {has[0]}; B has {has[1]}"


def _farthest(a: TensorDigest, b: TensorDigest) -> int | None:
    """Return the largest distance of the recorded elements; None if they are all equal."""
    if a.dtype not in FORMATS:
        return None
    distances = [
        ulp_distance(one, other, a.dtype) for one, other in zip(a.numbers, b.numbers, strict=True)
    ]
    known = [each for each in distances if each is not None]
    return max(known, default=0) or None if len(known) == len(distances) else None
