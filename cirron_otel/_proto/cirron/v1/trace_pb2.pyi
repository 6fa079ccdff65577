from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("schema_version", "sdk_version", "batch_id", "created_ns", "spans", "marks", "snapshots", "otel", "rest")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SDK_VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    OTEL_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    sdk_version: str
    batch_id: str
    created_ns: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    marks: _containers.RepeatedCompositeFieldContainer[Mark]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    otel: Object
    rest: str
    def __init__(self, schema_version: _Optional[int] = ..., sdk_version: _Optional[str] = ..., batch_id: _Optional[str] = ..., created_ns: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping[str, object]]]] = ..., marks: _Optional[_Iterable[_Union[Mark, _Mapping[str, object]]]] = ..., snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping[str, object]]]] = ..., otel: _Optional[_Union[Object, _Mapping[str, object]]] = ..., rest: _Optional[str] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("id", "name", "parent_id", "index", "start_ns", "end_ns", "cpu_ns", "gpu_ns", "memory_peak_bytes", "thread_id", "pid", "rank", "attrs", "mark_ids", "rest", "otel")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    GPU_NS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTRS_FIELD_NUMBER: _ClassVar[int]
    MARK_IDS_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    OTEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    parent_id: str
    index: int
    start_ns: int
    end_ns: int
    cpu_ns: int
    gpu_ns: int
    memory_peak_bytes: int
    thread_id: int
    pid: int
    rank: int
    attrs: Object
    mark_ids: _containers.RepeatedScalarFieldContainer[str]
    rest: str
    otel: Object
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., parent_id: _Optional[str] = ..., index: _Optional[int] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., cpu_ns: _Optional[int] = ..., gpu_ns: _Optional[int] = ..., memory_peak_bytes: _Optional[int] = ..., thread_id: _Optional[int] = ..., pid: _Optional[int] = ..., rank: _Optional[int] = ..., attrs: _Optional[_Union[Object, _Mapping[str, object]]] = ..., mark_ids: _Optional[_Iterable[str]] = ..., rest: _Optional[str] = ..., otel: _Optional[_Union[Object, _Mapping[str, object]]] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("id", "span_id", "name", "value_type", "value", "attrs", "ts_ns", "kind", "value_nonfinite", "rest", "otel")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ATTRS_FIELD_NUMBER: _ClassVar[int]
    TS_NS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUE_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    OTEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    span_id: str
    name: str
    value_type: str
    value: Value
    attrs: Object
    ts_ns: int
    kind: str
    value_nonfinite: str
    rest: str
    otel: Object
    def __init__(self, id: _Optional[str] = ..., span_id: _Optional[str] = ..., name: _Optional[str] = ..., value_type: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping[str, object]]] = ..., attrs: _Optional[_Union[Object, _Mapping[str, object]]] = ..., ts_ns: _Optional[int] = ..., kind: _Optional[str] = ..., value_nonfinite: _Optional[str] = ..., rest: _Optional[str] = ..., otel: _Optional[_Union[Object, _Mapping[str, object]]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("id", "span_id", "tensor_name", "shape", "dtype", "mode", "stats", "blob_uri", "ts_ns", "attrs", "rest", "otel")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    BLOB_URI_FIELD_NUMBER: _ClassVar[int]
    TS_NS_FIELD_NUMBER: _ClassVar[int]
    ATTRS_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    OTEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    span_id: str
    tensor_name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    mode: str
    stats: Stats
    blob_uri: str
    ts_ns: int
    attrs: Object
    rest: str
    otel: Object
    def __init__(self, id: _Optional[str] = ..., span_id: _Optional[str] = ..., tensor_name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., mode: _Optional[str] = ..., stats: _Optional[_Union[Stats, _Mapping[str, object]]] = ..., blob_uri: _Optional[str] = ..., ts_ns: _Optional[int] = ..., attrs: _Optional[_Union[Object, _Mapping[str, object]]] = ..., rest: _Optional[str] = ..., otel: _Optional[_Union[Object, _Mapping[str, object]]] = ...) -> None: ...

class Stats(_message.Message):
    __slots__ = ("mean", "std", "min", "max", "norm", "histogram", "rest")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    mean: float
    std: float
    min: float
    max: float
    norm: float
    histogram: Histogram
    rest: str
    def __init__(self, mean: _Optional[float] = ..., std: _Optional[float] = ..., min: _Optional[float] = ..., max: _Optional[float] = ..., norm: _Optional[float] = ..., histogram: _Optional[_Union[Histogram, _Mapping[str, object]]] = ..., rest: _Optional[str] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bins", "counts", "rest")
    BINS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    bins: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    rest: str
    def __init__(self, bins: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., rest: _Optional[str] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("null", "boolean", "integer", "number", "text", "list", "object", "json")
    NULL_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    null: bool
    boolean: bool
    integer: int
    number: float
    text: str
    list: List
    object: Object
    json: str
    def __init__(self, null: bool = ..., boolean: bool = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[str] = ..., list: _Optional[_Union[List, _Mapping[str, object]]] = ..., object: _Optional[_Union[Object, _Mapping[str, object]]] = ..., json: _Optional[str] = ...) -> None: ...

class List(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping[str, object]]]] = ...) -> None: ...

class Object(_message.Message):
    __slots__ = ("fields",)
    class Field(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping[str, object]]] = ...) -> None: ...
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedCompositeFieldContainer[Object.Field]
    def __init__(self, fields: _Optional[_Iterable[_Union[Object.Field, _Mapping[str, object]]]] = ...) -> None: ...
