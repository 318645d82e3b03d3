// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

var errShort = errors.New("the message ends within a value")

// maxElements bounds arrays, and maxElementsOfAll those of a message together: a server can't make this program allocate much more than the
// message that it has sent. An element may take one byte there, and fifty here.
const (
	maxElements      = 1 << 16
	maxElementsOfAll = 1 << 20
)

// reader reads values one after the other. The first error stays.
type reader struct {
	data     []byte
	err      error
	elements int // of arrays so far
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.data = nil
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.data) {
		r.fail(errShort)
		return nil
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) bool() bool { return r.byte() != 0 }

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) double() float64 { return math.Float64frombits(r.uint64()) }

// bytes reads a byte string; nil is null.
func (r *reader) bytes() []byte {
	n := int32(r.uint32())
	if n < 0 {
		return nil
	}
	return append([]byte{}, r.take(int(n))...)
}

func (r *reader) string() string { return string(r.bytes()) }

// count reads an array's length, of elements that have at least size bytes.
func (r *reader) count(size int) int {
	n := int32(r.uint32())
	switch {
	case n <= 0:
		return 0
	case n > maxElements || int(n)*size > len(r.data):
		r.fail(fmt.Errorf("an array has %d elements, more than the message or %d", n, maxElements))
		return 0
	}
	if r.elements += int(n); r.elements > maxElementsOfAll {
		r.fail(fmt.Errorf("a message has more than %d elements of arrays", maxElementsOfAll))
		return 0
	}
	return int(n)
}

// readList reads an array.
func readList[T any](r *reader, size int, one func() T) []T {
	n := r.count(size)
	out := make([]T, 0, n)
	for range n {
		out = append(out, one())
		if r.err != nil {
			return nil
		}
	}
	return out
}

// time reads a DateTime: 100 ns since 1601.
func (r *reader) time() time.Time { return fromTicks(int64(r.uint64())) }

const (
	ticksPerSecond = 10_000_000
	epochTicks     = 116_444_736_000_000_000 // of 1970
)

func fromTicks(t int64) time.Time {
	if t <= 0 {
		return time.Time{}
	}
	t -= epochTicks
	return time.Unix(t/ticksPerSecond, t%ticksPerSecond*100).UTC()
}

func toTicks(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()*ticksPerSecond + int64(t.Nanosecond()/100) + epochTicks
}

// localizedText reads a text, without its language.
func (r *reader) localizedText() string {
	mask := r.byte()
	if mask&1 != 0 {
		r.bytes()
	}
	if mask&2 != 0 {
		return r.string()
	}
	return ""
}

// qualifiedName reads a name, with its namespace before it if that is not 0.
func (r *reader) qualifiedName() string {
	ns, name := r.uint16(), r.string()
	if ns == 0 {
		return name
	}
	return fmt.Sprintf("%d:%s", ns, name)
}

// extension is an ExtensionObject: a structure by the identifier of its type's encoding.
type extension struct {
	typeID NodeID
	body   []byte
}

func (r *reader) extension() extension {
	e := extension{typeID: r.nodeID()}
	if encoding := r.byte(); encoding == 1 || encoding == 2 {
		e.body = r.bytes()
	}
	return e
}

// diagnostics reads over a DiagnosticInfo.
func (r *reader) diagnostics(depth int) {
	if depth > 10 {
		r.fail(errors.New("diagnostics are nested more than 10 times"))
		return
	}
	mask := r.byte()
	for bit := range 4 {
		if mask&(1<<bit) != 0 {
			r.uint32()
		}
	}
	if mask&0x10 != 0 {
		r.bytes()
	}
	if mask&0x20 != 0 {
		r.uint32()
	}
	if mask&0x40 != 0 {
		r.diagnostics(depth + 1)
	}
}

func (r *reader) diagnosticsList() {
	for range r.count(1) {
		r.diagnostics(0)
	}
}

// writer appends values.
type writer struct{ data []byte }

func (w *writer) byte(v byte) { w.data = append(w.data, v) }

func (w *writer) bool(v bool) {
	if v {
		w.byte(1)
	} else {
		w.byte(0)
	}
}
func (w *writer) uint16(v uint16)  { w.data = binary.LittleEndian.AppendUint16(w.data, v) }
func (w *writer) uint32(v uint32)  { w.data = binary.LittleEndian.AppendUint32(w.data, v) }
func (w *writer) uint64(v uint64)  { w.data = binary.LittleEndian.AppendUint64(w.data, v) }
func (w *writer) double(v float64) { w.uint64(math.Float64bits(v)) }

func (w *writer) bytes(v []byte) {
	if v == nil {
		w.uint32(math.MaxUint32)
		return
	}
	w.uint32(uint32(len(v)))
	w.data = append(w.data, v...)
}

func (w *writer) string(v string) {
	if v == "" {
		w.uint32(math.MaxUint32)
		return
	}
	w.bytes([]byte(v))
}

func (w *writer) time(v time.Time) { w.uint64(uint64(toTicks(v))) }

// extension appends a structure.
func (w *writer) extension(typeID uint32, body func(*writer)) {
	w.nodeID(NodeID{number: typeID})
	if body == nil {
		w.byte(0)
		return
	}
	w.byte(1)
	var inner writer
	body(&inner)
	w.bytes(inner.data)
}
