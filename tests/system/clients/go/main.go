// Command client sends spans with the official OpenTelemetry SDK for Go, and prints what it sent: a
// JSON object a line, one for each span, read from the SDK and not from the wire.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	schemaURL      = "https://opentelemetry.io/schemas/1.37.0"
	attributeLimit = 24
)

func main() {
	protocol := flag.String("protocol", "grpc", "grpc or http")
	endpoint := flag.String("endpoint", "localhost:4317", "HOST:PORT")
	gzip := flag.Bool("gzip", false, "compress requests")
	count := flag.Int("spans", 1000, "how many")
	flag.Parse()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Fatal(err) }))

	ctx := context.Background()
	exporter, err := otlptrace.New(ctx, client(*protocol, *endpoint, *gzip))
	if err != nil {
		log.Fatal(err)
	}
	limits := sdk.NewSpanLimits()
	limits.AttributeCountLimit = attributeLimit
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithBlocking(), sdk.WithMaxExportBatchSize(100)),
		sdk.WithSyncer(&printer{encoder: json.NewEncoder(os.Stdout)}),
		sdk.WithRawSpanLimits(limits),
		sdk.WithResource(resource.NewWithAttributes(
			schemaURL, append(everyType(7), attribute.String("service.name", "go"))...)),
	)
	record(provider, *count)
	if err := provider.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}

func client(protocol, endpoint string, gzip bool) otlptrace.Client {
	if protocol == "http" {
		compression := otlptracehttp.NoCompression
		if gzip {
			compression = otlptracehttp.GzipCompression
		}
		return otlptracehttp.NewClient(otlptracehttp.WithInsecure(),
			otlptracehttp.WithEndpoint(endpoint), otlptracehttp.WithCompression(compression))
	}
	options := []otlptracegrpc.Option{
		otlptracegrpc.WithInsecure(), otlptracegrpc.WithEndpoint(endpoint),
	}
	if gzip {
		options = append(options, otlptracegrpc.WithCompressor("gzip"))
	}
	return otlptracegrpc.NewClient(options...)
}

// record makes `count` spans: chains of five, each child within its parent.
func record(provider *sdk.TracerProvider, count int) {
	tracer := provider.Tracer("scope", trace.WithInstrumentationVersion("1.2"),
		trace.WithSchemaURL(schemaURL), trace.WithInstrumentationAttributes(attribute.Int("a", 1)))
	bare := provider.Tracer("")
	begun := time.Unix(1_790_000_000, 123_456_789)
	var open []trace.Span
	ctx := context.Background()
	for number := range count {
		if number%5 == 0 {
			ctx = remote(number)
		}
		using := tracer
		if number%7 == 0 {
			using = bare
		}
		at := begun.Add(time.Duration(number) * 1001)
		var span trace.Span
		ctx, span = using.Start(ctx, fmt.Sprintf("span é %d", number),
			trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKind(number%5+1)),
			trace.WithAttributes(everyType(number)...), trace.WithLinks(links(number)...))
		if number%10 == 0 {
			for extra := range 30 {
				span.SetAttributes(attribute.Int(fmt.Sprintf("extra%d", extra), extra))
			}
		}
		for event := range number % 4 {
			span.AddEvent(fmt.Sprintf("event %d", event), trace.WithTimestamp(at.Add(1)),
				trace.WithAttributes(everyType(event)...))
		}
		switch number % 3 {
		case 1:
			span.SetStatus(codes.Error, "broken: ≠")
		case 2:
			span.SetStatus(codes.Ok, "")
		}
		open = append(open, span)
		if number%5 == 4 || number == count-1 {
			for last := len(open) - 1; last >= 0; last-- {
				open[last].End(trace.WithTimestamp(at.Add(time.Duration(100 - last))))
			}
			open = nil
		}
	}
}

// remote is a context without a parent, or with one of another process.
func remote(number int) context.Context {
	ctx := context.Background()
	if number%2 == 0 {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, spanContext(byte(number)))
}

func spanContext(seed byte) trace.SpanContext {
	state, err := trace.ParseTraceState("vendor=value,other@tenant=1")
	if err != nil {
		log.Fatal(err)
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, seed}, SpanID: trace.SpanID{2, seed},
		TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
	})
}

func links(number int) []trace.Link {
	var made []trace.Link
	for link := range number % 3 {
		made = append(made, trace.Link{
			SpanContext: spanContext(byte(link + 1)), Attributes: everyType(link),
		})
	}
	return made
}

func everyType(number int) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.Bool("bool", number%2 == 0),
		attribute.Int("int", number),
		attribute.Int64("int.max", math.MaxInt64),
		attribute.Int64("int.min", math.MinInt64),
		attribute.Float64("float", float64(number)/3),
		attribute.Float64("float.whole", 1),
		attribute.Float64("float.zero", math.Copysign(0, -1)),
		attribute.Float64("float.infinite", math.Inf(-1)),
		attribute.Float64("float.nan", math.NaN()),
		attribute.Float64("float.least", math.SmallestNonzeroFloat64),
		attribute.String("string", fmt.Sprintf("text %d \x00 \u2028 😀 \"quoted\"", number)),
		attribute.String("string.empty", ""),
		attribute.BoolSlice("bools", []bool{true, false}),
		attribute.Int64Slice("ints", []int64{1, -1, math.MaxInt64}),
		attribute.Float64Slice("floats", []float64{1, 0.1, math.Inf(1)}),
		attribute.StringSlice("strings", []string{"a", "", "é"}),
		attribute.StringSlice("strings.none", nil),
	}
}

// printer writes spans as they stand in the SDK.
type printer struct {
	mutex   sync.Mutex
	encoder *json.Encoder
}

type kv struct {
	Key, Type string
	Value     any
}

type entry struct {
	Name, TraceID, SpanID, State string
	Time                         int64
	Attributes                   []kv
	Dropped                      int
}

type printed struct {
	Name, TraceID, SpanID, ParentID, State, StatusText string
	Kind, Status, Dropped                              int
	Start, End                                         int64
	Attributes, Resource                               []kv
	Events, Links                                      []entry
	Scope                                              scope
}

type scope struct {
	Name, Version, SchemaURL string
	Attributes               []kv
}

func (p *printer) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, span := range spans {
		if err := p.encoder.Encode(shown(span)); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) Shutdown(context.Context) error { return nil }

func shown(span sdk.ReadOnlySpan) printed {
	made := printed{
		Name: span.Name(), TraceID: span.SpanContext().TraceID().String(),
		SpanID: span.SpanContext().SpanID().String(),
		State:  span.SpanContext().TraceState().String(),
		Kind:   int(span.SpanKind()), Status: int(span.Status().Code),
		StatusText: span.Status().Description, Dropped: span.DroppedAttributes(),
		Start: span.StartTime().UnixNano(), End: span.EndTime().UnixNano(),
		Attributes: kvs(span.Attributes()), Resource: kvs(span.Resource().Attributes()),
		Scope: scopeOf(span.InstrumentationScope()),
	}
	if span.Parent().SpanID().IsValid() {
		made.ParentID = span.Parent().SpanID().String()
	}
	for _, event := range span.Events() {
		made.Events = append(made.Events, entry{
			Name: event.Name, Time: event.Time.UnixNano(), Attributes: kvs(event.Attributes),
			Dropped: event.DroppedAttributeCount,
		})
	}
	for _, link := range span.Links() {
		made.Links = append(made.Links, entry{
			TraceID: link.SpanContext.TraceID().String(), SpanID: link.SpanContext.SpanID().String(),
			State: link.SpanContext.TraceState().String(), Attributes: kvs(link.Attributes),
			Dropped: link.DroppedAttributeCount,
		})
	}
	return made
}

func scopeOf(found instrumentation.Scope) scope {
	return scope{found.Name, found.Version, found.SchemaURL, kvs(found.Attributes.ToSlice())}
}

func kvs(attributes []attribute.KeyValue) []kv {
	made := []kv{}
	for _, each := range attributes {
		made = append(made, kv{string(each.Key), each.Value.Type().String(), value(each.Value)})
	}
	return made
}

// value is exact in JSON: integers in decimal digits, doubles by their bits.
func value(given attribute.Value) any {
	texts := []string{}
	switch given.Type() {
	case attribute.INT64:
		return fmt.Sprint(given.AsInt64())
	case attribute.FLOAT64:
		return bits(given.AsFloat64())
	case attribute.INT64SLICE:
		for _, each := range given.AsInt64Slice() {
			texts = append(texts, fmt.Sprint(each))
		}
		return texts
	case attribute.FLOAT64SLICE:
		for _, each := range given.AsFloat64Slice() {
			texts = append(texts, bits(each))
		}
		return texts
	}
	return given.AsInterface()
}

func bits(number float64) string { return fmt.Sprintf("%016x", math.Float64bits(number)) }
