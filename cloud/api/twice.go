package api

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// maxTwice is how many fields that stand twice are told of: the paths may be long.
const maxTwice = 20

// place is where a value stands in a body. It is written out only where something is wrong.
type place struct {
	up   *place
	step string
}

func (p *place) field(name string) *place { return &place{p, "." + name} }
func (p *place) item(i int) *place        { return &place{p, "[" + strconv.Itoa(i) + "]"} }

func (p *place) String() string {
	var steps []string
	for ; p != nil; p = p.up {
		steps = append(steps, p.step)
	}
	var out strings.Builder
	for i := len(steps) - 1; i >= 0; i-- {
		out.WriteString(steps[i])
	}
	return strings.TrimPrefix(out.String(), ".")
}

// twice collects the fields that stand more than once in their object: all but one value are lost.
type twice []string

func (t *twice) add(at *place) {
	if len(*t) < maxTwice {
		*t = append(*t, at.String())
	}
}

// twiceIn finds them in JSON that is valid.
func twiceIn(raw []byte) (out twice) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	out.value(d, nil)
	return out
}

func (t *twice) value(d *json.Decoder, at *place) {
	switch token, _ := d.Token(); token { // valid: it has no errors
	case json.Delim('['):
		for i := 0; d.More(); i++ {
			t.value(d, at.item(i))
		}
	case json.Delim('{'):
		seen := make(map[string]int)
		for d.More() {
			key, _ := d.Token()
			name, _ := key.(string)
			if seen[name]++; seen[name] == 2 {
				t.add(at.field(name))
			}
			t.value(d, at.field(name))
		}
	default:
		return
	}
	_, _ = d.Token() // the end of it
}
