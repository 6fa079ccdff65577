"""What a scope yields is read and written: the names, the index, attributes and measurements."""

import cirron as ci

ci.profile(frameworks=[], snapshots=None)
with ci.scope("as it began", 1, given=True) as scope:
    print(scope.name, scope.index, scope.attrs, scope.gpu_ns, scope.memory_peak_bytes)
    scope.name = "renamed"
    scope.index = 9
    scope.attrs["added"] = 1
    scope.attrs.update(more="text")
    scope.gpu_ns = 5
    scope.cpu_ns = 6
    scope.memory_peak_bytes = 7
    with ci.scope("inside") as inner:
        print(inner.parent_id == scope.id, len(scope.id), inner.thread_id == scope.thread_id)
    print(scope.start_ns <= inner.start_ns <= inner.end_ns)
ci.shutdown()
