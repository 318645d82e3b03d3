package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/topics/dialect/fit"
)

// maxTwice is how many fields that stand twice are told of.
const maxTwice = maxFaults

// place is where a value stands in a body. It is written out only where something is wrong.
type place struct {
	up   *place
	name []byte // of a field; nil: an item
	nth  int
}

func (p *place) field(name string) *place { return &place{up: p, name: []byte(name)} }
func (p *place) item(i int) *place        { return &place{up: p, nth: i} }

func (p *place) String() string {
	var steps []string
	for ; p != nil; p = p.up {
		if p.name == nil {
			steps = append(steps, "["+strconv.Itoa(p.nth)+"]")
		} else {
			steps = append(steps, "."+string(p.name))
		}
	}
	slices.Reverse(steps)
	return strings.TrimPrefix(strings.Join(steps, ""), ".")
}

// twice collects the fields that stand more than once in their object: all but one value are lost.
type twice []string

func (t *twice) add(at *place) {
	if len(*t) < maxTwice {
		*t = append(*t, fit.Clip(at.String()))
	}
}

// twiceIn finds them in JSON that is valid.
func twiceIn(raw []byte) (out twice) {
	out.value(raw, blank(raw, 0), nil)
	return out
}

// value looks through the value that begins at i, and returns where it ends.
func (t *twice) value(raw []byte, i int, at *place) int {
	switch raw[i] {
	case '[':
		i = blank(raw, i+1)
		for n := 0; raw[i] != ']'; n++ {
			i = next(raw, t.value(raw, i, at.item(n)))
		}
		return i + 1
	case '{':
		var names seen
		for i = blank(raw, i+1); raw[i] != '}'; {
			end := skipString(raw, i)
			here := place{up: at, name: unquoted(raw[i:end])}
			if names.second(here.name) {
				t.add(&here)
			}
			i = blank(raw, blank(raw, end)+1) // past the colon
			i = next(raw, t.value(raw, i, &here))
		}
		return i + 1
	}
	return skip(raw, i)
}

// next is where the next item or field begins, or the end of all of them stands.
func next(raw []byte, i int) int {
	if i = blank(raw, i); raw[i] == ',' {
		i = blank(raw, i+1)
	}
	return i
}

// unquoted is a name without its quotes and escapes.
func unquoted(name []byte) []byte {
	plain := name[1 : len(name)-1]
	if bytes.IndexByte(plain, '\\') < 0 {
		return plain
	}
	var text string
	_ = json.Unmarshal(name, &text) // valid
	return []byte(text)
}

// seen are the names of one object. Most have few, and a map for each object would be most of the work.
type seen struct {
	few  [12][]byte
	told uint16 // which of few were there twice
	n    int
	many map[string]int
}

// second says whether a name is there for the second time.
func (s *seen) second(name []byte) bool {
	if s.many != nil {
		s.many[string(name)]++
		return s.many[string(name)] == 2
	}
	for i := range s.n {
		if bytes.Equal(s.few[i], name) {
			first := s.told&(1<<i) == 0
			s.told |= 1 << i
			return first
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return false
	}
	s.many = make(map[string]int, 4*len(s.few))
	for i := range s.n {
		s.many[string(s.few[i])] = 1 + int(s.told>>i&1)
	}
	s.many[string(name)] = 1
	return false
}
