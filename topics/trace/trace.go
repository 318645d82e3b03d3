// SPDX-License-Identifier: Apache-2.0

// Package trace has the form in which a trace goes from program to program: traceparent, of the W3C's recommendation Trace Context. It
// travels as a header of HTTP and as a user property of MQTT.
package trace

import (
	"crypto/rand"
	"encoding/hex"
)

// Property is the header, and the user property.
const Property = "traceparent"

// SpanContext is a place in a trace: what is done because of it is below the span.
type SpanContext struct {
	Trace   [16]byte
	Span    [8]byte
	Sampled bool // somebody records the trace
}

const (
	traceparentLength = 55 // of version 00: 00-TRACE-SPAN-FLAGS
	flagSampled       = 1
)

// Parse reads a traceparent. One of a version to come may be longer, and is read as far as it is known. ok is false for what is none: it
// is ignored, as the recommendation wants it.
func Parse(text string) (c SpanContext, ok bool) {
	if len(text) < traceparentLength || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return SpanContext{}, false
	}
	var version, flags [1]byte
	parts := []struct {
		to   []byte
		from string
	}{{version[:], text[:2]}, {c.Trace[:], text[3:35]}, {c.Span[:], text[36:52]}, {flags[:], text[53:55]}}
	for _, p := range parts {
		for i := range len(p.from) {
			if b := p.from[i]; (b < '0' || b > '9') && (b < 'a' || b > 'f') { // upper case is not allowed
				return SpanContext{}, false
			}
		}
		if _, err := hex.Decode(p.to, []byte(p.from)); err != nil {
			return SpanContext{}, false
		}
	}
	switch {
	case version[0] == 0xff, version[0] == 0 && len(text) != traceparentLength, len(text) > traceparentLength && text[traceparentLength] != '-':
		return SpanContext{}, false
	case c.Trace == [16]byte{}, c.Span == [8]byte{}:
		return SpanContext{}, false
	}
	c.Sampled = flags[0]&flagSampled != 0
	return c, true
}

// ValidTraceparent is the traceparent if it is one that is understood here, in the form of version 00; else empty.
func ValidTraceparent(text string) string {
	c, ok := Parse(text)
	if !ok {
		return ""
	}
	return c.String()
}

// String is the traceparent.
func (c SpanContext) String() string {
	if c.Trace == [16]byte{} {
		return ""
	}
	flags := "-00"
	if c.Sampled {
		flags = "-01"
	}
	return "00-" + hex.EncodeToString(c.Trace[:]) + "-" + hex.EncodeToString(c.Span[:]) + flags
}

// IDOf is the trace's identifier within a traceparent, for logs; empty if there is none.
func IDOf(traceparent string) string {
	if c, ok := Parse(traceparent); ok {
		return hex.EncodeToString(c.Trace[:])
	}
	return ""
}

// Child is a new span in the same trace.
func (c SpanContext) Child() SpanContext {
	_, _ = rand.Read(c.Span[:]) // it never fails
	return c
}

// NewTrace begins a trace.
func NewTrace(sampled bool) SpanContext {
	c := SpanContext{Sampled: sampled}
	_, _ = rand.Read(c.Trace[:]) // it never fails
	return c.Child()
}
