// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// availability is where a device, or what speaks for it, says whether it is there.
type availability struct {
	sources []availabilitySource
	mode    string // which of them count: all, any or latest
}

type availabilitySource struct {
	valueSource
	available string // the word for a device that is there; empty: any of the usual ones
}

// usualWords are those that devices say for that they are there.
var usualWords = []string{"online", "true", "1", "on", "yes", "connected", "ready", "available", "alive"}

// availability reads the settings of a Device: one topic, or a list of sources in JSON.
func (s configSettings) availability() (a availability, err error) {
	at := devicePath + "availability"
	text, err := s.take("availability")
	if err != nil {
		return a, err
	}
	path, err := s.take("availabilityPath")
	if err != nil {
		return a, err
	}
	available, err := s.take("available")
	if err != nil {
		return a, err
	}
	if a.mode, err = s.take("availabilityMode"); err != nil {
		return a, err
	}
	if a.mode == "" {
		a.mode = "all"
	}
	if !slices.Contains([]string{"all", "any", "latest"}, a.mode) {
		return a, mappers.BadConfig(at+"Mode", "%q is none of all, any, latest", a.mode)
	}
	type form struct{ Topic, Path, Available string }
	var forms []form
	if text = strings.TrimSpace(text); strings.HasPrefix(text, "[") {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&forms); err != nil {
			return a, mappers.BadConfig(at, `is no list such as [{"topic":"a/state","path":"state","available":"online"}]: %v`, err)
		}
	} else if text != "" {
		forms = []form{{text, path, available}}
	}
	for i, f := range forms {
		field := "availability"
		if len(forms) > 1 {
			field = fmt.Sprintf("availability[%d]", i)
		}
		one := availabilitySource{available: f.Available}
		if one.topic = f.Topic; one.topic == "" {
			return a, mappers.BadConfig(s.at+field, "topic is required")
		}
		if err := s.checkTopic(field, one.topic); err != nil {
			return a, err
		}
		if one.path, err = jsonpath.Parse(f.Path); err != nil {
			return a, mappers.BadConfig(s.at+field+"Path", "%q: %v", f.Path, err)
		}
		a.sources = append(a.sources, one)
	}
	return a, nil
}

// word is what a message says, and whether that is the word for a device that is there.
func (a availabilitySource) word(m *jsonpath.Message) (word string, there bool) {
	word, _, ok, err := m.Find(a.path)
	if err != nil || !ok { // some publish the bare word as well
		word = string(m.Payload)
	}
	word = strings.Trim(word, " \t\r\n\x00")
	if a.available != "" {
		return word, strings.EqualFold(word, a.available)
	}
	return word, slices.Contains(usualWords, strings.ToLower(word))
}

// presence is what the sources have said.
type presence struct {
	said   []string // by source: why the device isn't there; empty: it is, or the source has said nothing
	known  []bool   // by source: it has said something
	latest int      // the source that was the last to say something
}

func newPresence(sources int) presence {
	return presence{said: make([]string, sources), known: make([]bool, sources)}
}

// take takes a message that may be of some of the sources. An empty one takes back what was retained.
func (p *presence) take(a availability, m *jsonpath.Message) {
	for i, source := range a.sources {
		if m.Source != source.topic {
			continue
		}
		word, there := source.word(m)
		p.known[i], p.said[i], p.latest = true, "", i
		if len(m.Payload) > 0 && !there {
			p.said[i] = fmt.Sprintf("%s is %s", m.Source, clipText(word))
		}
	}
}

// complete reports whether each source has said something.
func (p *presence) complete() bool { return !slices.Contains(p.known, false) }

// absence says why the device isn't there; empty: it is. A source that has never said anything says that it is.
func (p *presence) absence(mode string) string {
	away := slices.DeleteFunc(slices.Clone(p.said), func(why string) bool { return why == "" })
	switch {
	case len(away) == 0, mode == "any" && len(away) < len(p.said):
		return ""
	case mode == "latest":
		return p.said[p.latest]
	}
	return strings.Join(away, ", ")
}
