"""Blob stores, which contain the tensors of snapshots, one object per tensor (docs/blobs.md).

```
place.py       the location of a store (a directory, or a prefix in a bucket), and keys of objects
tensors.py     safetensors files: their headers, and one tensor as a separate file
store.py       BlobStore, the interface
directory.py   a store in a directory
s3.py          a store in S3 (needs obstore, the extra `s3`)
pending.py     the list of pending uploads, on disk
target.py      the delivery target that records the files of batches as pending
uploader.py    the thread that uploads the tensors
```
"""

from .place import parse_place
from .store import BlobStore, DifferentError, StoredObject

__all__ = ["BlobStore", "DifferentError", "StoredObject", "open_store"]


def open_store(url: str) -> BlobStore:
    """Return the store at a path, `file:///DIR` or `s3://BUCKET/PREFIX`, without connecting to it.

    Credentials and servers come from the environment (docs/blobs.md). Raises UsageError for any
    other URL, and MissingExtraError if obstore is not installed.
    """
    place = parse_place(url)
    if place.path is not None:
        from .directory import DirectoryStore  # noqa: PLC0415 - import a store only when it is used

        return DirectoryStore(place)
    from .s3 import S3BlobStore  # noqa: PLC0415

    return S3BlobStore(place)
