package cmd

import (
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Found is a device as a mapper's scan or browse found it: what it takes to have it in the tree. WriteManifests writes it.
type Found struct {
	Name, Title string
	Node        string // default: node1
	Protocol    string
	Config      map[string]string // spec.protocol.config
	Properties  []FoundProperty
}

// FoundProperty is a property that was found, with its visitor's config.
type FoundProperty struct {
	Name, Title, Type, Unit string
	Writable                bool
	Minimum, Maximum        *float64
	Enum                    []string
	Words                   []FoundWord
	Config                  map[string]string
}

// FoundWord is a value of the enumeration, and what the device says for it.
type FoundWord struct {
	Value string   `yaml:"value"`
	Read  []string `yaml:"read,flow"`
	Write string   `yaml:"write,omitempty"`
}

// The manifests, with their fields in the order in which people write them.
type (
	manifest struct {
		APIVersion string       `yaml:"apiVersion"`
		Kind       string       `yaml:"kind"`
		Metadata   manifestName `yaml:"metadata"`
		Spec       any          `yaml:"spec"`
	}
	manifestName struct {
		Name string `yaml:"name"`
	}
	modelSpec struct {
		Properties []modelProperty `yaml:"properties"`
		Visitors   []modelVisitors `yaml:"propertyVisitors"`
	}
	modelProperty struct {
		Name       string   `yaml:"name"`
		Title      string   `yaml:"title,omitempty"`
		Type       string   `yaml:"type"`
		Unit       string   `yaml:"unit,omitempty"`
		AccessMode string   `yaml:"accessMode"`
		Minimum    *float64 `yaml:"minimum,omitempty"`
		Maximum    *float64 `yaml:"maximum,omitempty"`
		Enum       []string `yaml:"enum,flow,omitempty"`
	}
	modelVisitors struct {
		Protocol string         `yaml:"protocol"`
		Visitors []modelVisitor `yaml:"visitors"`
	}
	modelVisitor struct {
		PropertyName string            `yaml:"propertyName"`
		Words        []FoundWord       `yaml:"words,omitempty"`
		Config       map[string]string `yaml:"config,flow"`
	}
	deviceSpec struct {
		Model    manifestName   `yaml:"deviceModelRef"`
		Node     string         `yaml:"nodeName"`
		Protocol deviceProtocol `yaml:"protocol"`
	}
	deviceProtocol struct {
		Type   string            `yaml:"type"`
		Config map[string]string `yaml:"config,flow"`
	}
)

// WriteManifests writes a Device and its DeviceModel as YAML, as edgebus apply takes them. Names that can't be used are made fit.
func WriteManifests(w io.Writer, f Found) error {
	name := FitName(f.Name, "device")
	node := f.Node
	if node == "" {
		node = "node1"
	}
	model := modelSpec{Properties: []modelProperty{}, Visitors: []modelVisitors{{Protocol: f.Protocol, Visitors: []modelVisitor{}}}}
	taken := map[string]bool{}
	for _, p := range f.Properties {
		id := FitName(p.Name, "property")
		for base, n := id, 2; taken[id]; n++ {
			id = fmt.Sprintf("%s-%d", base, n)
		}
		taken[id] = true
		title := p.Title
		if title == "" && p.Name != id {
			title = p.Name
		}
		mode := "ReadOnly"
		if p.Writable {
			mode = "ReadWrite"
		}
		model.Properties = append(model.Properties, modelProperty{id, title, p.Type, p.Unit, mode, p.Minimum, p.Maximum, p.Enum})
		model.Visitors[0].Visitors = append(model.Visitors[0].Visitors, modelVisitor{id, p.Words, p.Config})
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	for _, m := range []manifest{
		{"edgebus.io/v1alpha1", "DeviceModel", manifestName{name}, model},
		{"edgebus.io/v1alpha1", "Device", manifestName{name}, deviceSpec{manifestName{name}, node, deviceProtocol{f.Protocol, f.Config}}},
	} {
		if err := e.Encode(m); err != nil {
			return err
		}
	}
	return e.Close()
}

// FitName makes a name of what a device calls something: lower case letters, digits and hyphens, at most 63 of them. fallback is for what
// has neither letters nor digits.
func FitName(s, fallback string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case strings.ContainsRune("äöü", r):
			b.WriteString(map[rune]string{'ä': "ae", 'ö': "oe", 'ü': "ue"}[r])
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	name := b.String()
	name = strings.Trim(name[:min(len(name), 63)], "-")
	if name == "" {
		return fallback
	}
	return name
}
