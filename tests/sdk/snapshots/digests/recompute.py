"""Recompute digests from kept tensors, with nothing but the standard library.

    python recompute.py FILE

FILE is a safetensors file that `digest_keep` has stored. Prints the digest of each tensor, and then
that of the quantity. The functions are those of docs/digests.md.
"""

import hashlib
import json
import sys

MASK = 2**64 - 1


def odd(k):
    z = k * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31 | 1


def tensor_digest(description, *parts):
    seed = hashlib.sha256(description.encode()).digest()
    halves = []
    for half in (0, 1):
        total = int.from_bytes(seed[8 * half : 8 * half + 8], "little")
        row = 0
        for part in parts:
            for start in range(0, len(part), 4096):
                weight = odd(2**40 + 2 * row + half)
                for column in range(-(-len(part[start : start + 4096]) // 4)):
                    at = start + 4 * column
                    numbers = memoryview(part[at : at + 4]).cast("b")
                    word = sum(number << 8 * place for place, number in enumerate(numbers))
                    total += word * weight * odd(2 * column + half + 1)
                row += 1
        halves.append((total & MASK).to_bytes(8, "little"))
    return b"".join(halves)


def quantity_digest(tensors):
    joined = b"".join(name.encode() + b"\0" + digest for name, digest in tensors)
    return hashlib.sha256(joined).digest()[:16]


def tensors_of(data):
    """Yield the name, the description and the parts of each tensor of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name, description in header.pop("__metadata__").items():
        keys = [name] if name in header else [f"{name}#{part}" for part in parts_in(description)]
        offsets = [header[key]["data_offsets"] for key in keys]
        yield name, description, [data[8 + size + a : 8 + size + b] for a, b in offsets]


def parts_in(description):
    return description.split()[3::3]


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:  # noqa: PTH123
        found = [
            (name, tensor_digest(text, *parts)) for name, text, parts in tensors_of(file.read())
        ]
    for name, digest in found:
        print(digest.hex(), name)
    print(quantity_digest(found).hex())
