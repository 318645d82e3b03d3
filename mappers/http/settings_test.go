package http

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
)

// Each setting of the table is taken, so that a wrong value is told as one; any other is refused.
func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	table := (&Driver{}).Settings()
	open := func(place, name string) error {
		d := mappers.Device{Config: map[string]string{"url": "http://10.0.0.9"}}
		p := mappers.Property{Name: "x", Visited: true, Config: map[string]string{}}
		for _, s := range table.SettingsFor(place) {
			if s.Required && place != "device" {
				p.Config[s.Name] = map[string]string{"write": "POST /x"}[s.Name]
			}
		}
		into := p.Config
		switch place {
		case "device":
			into = d.Config
		case "property":
			d.Properties = []mappers.Property{p}
		case "event":
			d.Events = []mappers.Property{p}
		case "command":
			d.Commands = []mappers.Property{p}
		}
		into = maps.Collect(maps.All(into))
		into[name] = "?"
		if place == "device" {
			d.Config = into
		} else {
			for _, list := range [][]mappers.Property{d.Properties, d.Events, d.Commands} {
				for i := range list {
					list[i].Config = into
				}
			}
		}
		_, err := (&Driver{}).Open(t.Context(), d)
		return err
	}
	for _, place := range []string{"device", "property", "event", "command"} {
		for _, s := range table.SettingsFor(place) {
			if err := open(place, s.Name); err != nil {
				assert.NotContains(t, err.Error(), "is no setting", "%s %s", place, s.Name)
			}
		}
		if len(table.SettingsFor(place)) > 0 {
			require.ErrorContains(t, open(place, "colour"), "is no setting", place)
		}
	}
}
