// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files beside the copy that say how it is.
const (
	StateFile   = "follow.json"
	MetricsFile = "follow.prom" // in the format that Prometheus' node_exporter takes from files
)

// State is what a copy says of itself.
type State struct {
	Server   string    `json:"server"`
	Log      string    `json:"log,omitempty"`
	Position uint64    `json:"position"`
	Whole    bool      `json:"whole"`         // there is a copy to take over
	AsOf     time.Time `json:"asOf,omitzero"` // the copy has all that the hub had then, by the hub's clock
	Behind   int64     `json:"behindBytes"`   // at the last contact
	Contact  time.Time `json:"contact,omitzero"`
	Lacking  []string  `json:"lackingKeys,omitempty"` // keys to be copied by hand, without which it can't be taken over
	Error    string    `json:"error,omitempty"`       // why it isn't connected; empty: it is
	Written  time.Time `json:"written"`
}

// ReadState reads what a copy says of itself.
func ReadState(dir string) (s State, err error) {
	text, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

// Lag is how old the copy is.
func (s State) Lag(now time.Time) time.Duration { return max(now.Sub(s.AsOf), 0) }

// String says how the copy is.
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "follows     %s\n", s.Server)
	if !s.Whole {
		fmt.Fprintf(&b, "copy        not whole yet, about %d bytes to go\n", s.Behind)
	} else {
		fmt.Fprintf(&b, "copy        of log %s up to position %d; it has all that the hub had at %s\n", s.Log, s.Position, s.AsOf.UTC().Format(time.RFC3339Nano))
		fmt.Fprintf(&b, "behind      %d bytes at the last contact, %s\n", s.Behind, s.Contact.UTC().Format(time.RFC3339))
	}
	if s.Error != "" {
		fmt.Fprintf(&b, "connected   no: %s\n", s.Error)
	}
	if len(s.Lacking) > 0 {
		fmt.Fprintf(&b, "keys        lacking or others than the hub's: %s; copy them from the hub, or from a backup of it\n", strings.Join(s.Lacking, ", "))
	}
	return b.String()
}

// write writes the files. They are read by others at any time, and need not outlive a power cut.
func (s State) write(dir string, now time.Time) error {
	s.Written = now
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	connected, whole := 1, 0
	if s.Error != "" {
		connected = 0
	}
	if s.Whole {
		whole = 1
	}
	var m strings.Builder
	gauge := func(name, help string, value any) {
		fmt.Fprintf(&m, "# HELP edgebus_follow_%s %s\n# TYPE edgebus_follow_%s gauge\nedgebus_follow_%s %v\n", name, help, name, name, value)
	}
	gauge("connected", "1 while the hub sends its log.", connected)
	gauge("whole", "1 when there is a copy that can be taken over.", whole)
	gauge("as_of_seconds", "When the hub had what the copy has, in seconds since 1970: time() less this is the lag.", fmt.Sprintf("%.3f", max(float64(s.AsOf.UnixMilli())/1000, 0)))
	gauge("behind_bytes", "Bytes of the hub's log that the copy lacked at the last contact.", s.Behind)
	gauge("lacking_keys", "Keys that have to be copied by hand.", len(s.Lacking))
	for name, content := range map[string][]byte{StateFile: append(text, '\n'), MetricsFile: []byte(m.String())} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", content, 0o640); err != nil { //nolint:gosec // G306: it says nothing of what is in the log, and monitoring reads it
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}
