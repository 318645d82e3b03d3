package api

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// fromYAML makes JSON of YAML. Words such as ON and no are text, as in YAML 1.2; the
// reader that kubectl has makes booleans of them. Of a key that stands twice the last counts,
// as with kubectl.
func fromYAML(raw []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	plainTags(&doc)
	var v any
	if err := doc.Decode(&v); err != nil { // it bounds what aliases may add up to
		return nil, err
	}
	return json.Marshal(v)
}

// plainTags leaves no types but JSON's: times are text, and so are keys.
func plainTags(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	if n.Kind == yaml.MappingNode {
		lastCounts(n)
	}
	for _, child := range n.Content {
		plainTags(child)
	}
}

func lastCounts(n *yaml.Node) {
	at := make(map[string]int)
	kept := n.Content[:0]
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			kept = append(kept, key, value)
			continue
		}
		key.Tag = "!!str"
		if before, twice := at[key.Value]; twice {
			kept[before+1] = value
			continue
		}
		at[key.Value] = len(kept)
		kept = append(kept, key, value)
	}
	n.Content = kept
}
