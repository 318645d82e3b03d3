package api

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// fromYAML makes JSON of YAML. Words such as ON and no are text, as in YAML 1.2; the
// reader that kubectl has makes booleans of them. Of a key that stands twice the last counts,
// as with kubectl; these are returned.
func fromYAML(raw []byte) ([]byte, twice, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, nil, err
	}
	var again twice
	plainTags(&doc, nil, &again)
	var v any
	if err := doc.Decode(&v); err != nil { // it bounds what aliases may add up to
		return nil, nil, err
	}
	out, err := json.Marshal(v)
	return out, again, err
}

// plainTags leaves no types but JSON's: times are text, and so are keys.
func plainTags(n *yaml.Node, at *place, again *twice) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	if n.Kind == yaml.MappingNode {
		lastCounts(n, at, again)
	}
	for i, child := range n.Content {
		below := at
		switch {
		case n.Kind == yaml.SequenceNode:
			below = at.item(i)
		case n.Kind == yaml.MappingNode && i%2 == 1:
			below = at.field(n.Content[i-1].Value)
		}
		plainTags(child, below, again)
	}
}

func lastCounts(n *yaml.Node, at *place, again *twice) {
	index := make(map[string]int)
	kept := n.Content[:0]
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			kept = append(kept, key, value)
			continue
		}
		key.Tag = "!!str"
		if before, known := index[key.Value]; known {
			again.add(at.field(key.Value))
			kept[before+1] = value
			continue
		}
		index[key.Value] = len(kept)
		kept = append(kept, key, value)
	}
	n.Content = kept
}
