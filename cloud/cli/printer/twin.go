// SPDX-License-Identifier: Apache-2.0

package printer

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// TwinRows is a twin as a table, in the order of names; none: the alphabet's.
func TwinRows(twin map[string]resource.TwinProperty, names []string, now time.Time) [][]string {
	rows := [][]string{{"PROPERTY", "DESIRED", "REPORTED", "IN-SYNC", "AGE", "NOTE"}}
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(twin))
	}
	for _, name := range names {
		t := twin[name]
		sync := "no"
		switch {
		case t.Desired == nil: // nothing that could be
			sync = "–"
		case t.InSync:
			sync = "yes"
		case t.Local && t.Reported == nil:
			sync = "on node" // only the node knows
		}
		when := "–"
		if t.Reported != nil {
			if at, err := resource.ParseTime(t.Reported.TS); err == nil {
				when = Age(now.Sub(at))
			}
		}
		rows = append(rows, []string{name, twinValueText(t.Desired), twinValueText(t.Reported), sync, when, twinNote(t, now)})
	}
	return rows
}

func twinValueText(v *resource.TwinValue) string {
	if v == nil {
		return "–"
	}
	return terminal.Printable(v.Value, 40)
}

// twinNote returns why the desired and the reported value differ.
func twinNote(t resource.TwinProperty, now time.Time) string {
	var notes []string
	if p := t.Problem; p != nil {
		note := "can't be read"
		if at, err := resource.ParseTime(p.Since); err == nil {
			note += " since " + Age(now.Sub(at)) + " ago"
		}
		notes = append(notes, note+": "+strings.TrimSuffix(p.Code+": "+p.Message, ": "))
	}
	if r := t.Refused; r != nil {
		notes = append(notes, "refused: "+strings.TrimSuffix(r.Code+": "+r.Message, ": "))
	}
	if v := t.Override; v != nil {
		note := "overridden on the node: " + terminal.Printable(v.Value, 40)
		if v.Until != "" {
			note += " until " + v.Until
		}
		notes = append(notes, note)
	}
	if c := t.Conflict; c != nil {
		notes = append(notes, "conflict: "+c.Winner+" won (policy "+c.Policy+")")
	}
	return terminal.Printable(strings.Join(notes, "; "), 200)
}
