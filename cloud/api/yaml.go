package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// maxYAML bounds a body in YAML, in bytes. Of each two bytes the library makes a node of some 200; JSON has no such cost.
const maxYAML = 1 << 20

// maxTags bounds %TAG directives, of which the library compares each with each.
const maxTags = 16

// fromYAML makes JSON of YAML, which has nothing but what JSON has: an anchor would let a small body stand for a large one.
// Words such as ON and no are text, as in YAML 1.2; the reader that kubectl has makes booleans of them. Times are text, and so
// are keys. Of a key that stands twice the last counts, as with kubectl; these are returned.
func fromYAML(raw []byte) ([]byte, twice, error) {
	if len(raw) > maxYAML {
		return nil, nil, fmt.Errorf("it has %d bytes, and YAML at most %d: send JSON", len(raw), maxYAML)
	}
	if bytes.Count(raw, []byte("%TAG")) > maxTags {
		return nil, nil, errors.New("it has more %TAG directives than anybody needs")
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, nil, err
	}
	if doc.IsZero() {
		return []byte("null"), nil, nil
	}
	var w yamlWriter
	err := w.value(&doc, nil)
	return w.out, w.again, err
}

// yamlWriter writes each node once.
type yamlWriter struct {
	out   []byte
	again twice
}

func (w *yamlWriter) value(n *yaml.Node, at *place) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return yamlFault(n, "anchors (&name) and aliases (*name) are not taken: write the value wherever it is wanted")
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return w.value(n.Content[0], at)
	case yaml.MappingNode:
		return w.mapping(n, at)
	case yaml.SequenceNode:
		w.out = append(w.out, '[')
		for i, item := range n.Content {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			if err := w.value(item, at.item(i)); err != nil {
				return err
			}
		}
		w.out = append(w.out, ']')
		return nil
	}
	var v any = n.Value
	if tag := n.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		if err := n.Decode(&v); err != nil {
			return err
		}
	}
	return w.scalar(n, v)
}

func (w *yamlWriter) scalar(n *yaml.Node, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return yamlFault(n, "%.40q has no form in JSON", n.Value)
	}
	w.out = append(w.out, text...)
	return nil
}

func (w *yamlWriter) mapping(n *yaml.Node, at *place) error {
	last := make(map[string]int, len(n.Content)/2) // where a key stands for the last time
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind == yaml.AliasNode || key.Anchor != "":
			return w.value(key, at)
		case key.Kind != yaml.ScalarNode:
			return yamlFault(key, "a key is text, no list and no mapping")
		case key.ShortTag() == "!!merge":
			return yamlFault(key, "merge keys (<<) are not taken: write the fields wherever they are wanted")
		}
		if _, known := last[key.Value]; known {
			w.again.add(at.field(key.Value))
		}
		last[key.Value] = i
	}
	w.out = append(w.out, '{')
	for i, more := 0, false; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if last[key.Value] != i {
			continue
		}
		if more {
			w.out = append(w.out, ',')
		}
		more = true
		if err := w.scalar(key, key.Value); err != nil {
			return err
		}
		w.out = append(w.out, ':')
		if err := w.value(n.Content[i+1], at.field(key.Value)); err != nil {
			return err
		}
	}
	w.out = append(w.out, '}')
	return nil
}

func yamlFault(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{n.Line}, args...)...)
}
