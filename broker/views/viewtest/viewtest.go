// SPDX-License-Identifier: Apache-2.0

// Package viewtest tests views by text files of what a view is told and what it does. A file is blocks of lines: what happens, a line ----,
// and all that the view does then, until an empty line. With GOLDEN=write the files are written as it is.
//
//	connect 1                         the connection 1 begins; prints its will and filters
//	node n1 online site=plant         the node changes: online, offline, gone, and labels
//	device lamp online power=ON       one of Devices, with its state and values; power= clears one, power!Unread sets a problem, power! takes it back
//	patch lamp {"model":…}            the Device's description changes, by a JSON merge patch of its bundle
//	remove lamp                       there is no such Device any more
//	event button action single        an event of the Device
//	received TOPIC PAYLOAD            a message at the peer
//	found TOPIC PAYLOAD               a retained message at the peer; origin=NAME before the topic: who has published it
//	settled                           all was told once
//	refused lamp power because        a Set was refused
//	past lamp 1700000000000 power=ON  what a property was at a time in milliseconds; more of such pairs; power= is: it had none
//	ending                            the connection is about to end
//	now 1700000000000                 the time in milliseconds; it begins at 1700000000000 and each event takes one
package viewtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are how a view is tested.
type Options struct {
	// Files is a pattern of the files' names, such as testdata/*.txt.
	Files string
	// New makes a view, one for each file.
	New func() views.View
	// Print is a payload as the files have it; nil: as it is.
	Print func(views.Message) string
	// Read makes a payload of what a file has for a message at the peer; nil: as it is.
	Read func(text string) []byte
}

// Run runs each file.
func Run(t *testing.T, o Options) {
	t.Helper()
	files, err := filepath.Glob(o.Files)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file %s: %v", o.Files, err)
	}
	if o.Print == nil {
		o.Print = func(m views.Message) string { return string(m.Payload) }
	}
	if o.Read == nil {
		o.Read = func(text string) []byte { return []byte(text) }
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runFile(t, file, newViewScript(o)) })
	}
}

func runFile(t *testing.T, file string, s *viewScript) {
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	expected := false
	for line := range strings.Lines(string(before)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "----":
			expected = true
			out.WriteString("----\n" + s.takeOutput())
		case line == "":
			expected = false
			out.WriteString("\n")
		case expected: // what it did before
		default:
			if err := s.run(line); err != nil {
				t.Fatalf("%s: %s: %v", file, line, err)
			}
			out.WriteString(line + "\n")
		}
	}
	if after := out.String(); os.Getenv("GOLDEN") == "write" {
		if err := os.WriteFile(file, []byte(after), 0o644); err != nil { //nolint:gosec // a test's file
			t.Fatal(err)
		}
	} else if after != string(before) {
		t.Errorf("%s: the view does something else than the file says; see it with GOLDEN=write and git diff:\n%s", file, lineDifference(string(before), after))
	}
}

// lineDifference is the lines that only one of two texts has.
func lineDifference(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	var out []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}

// viewScript is a view that is told what lines say.
type viewScript struct {
	Options
	view     views.View
	exchange *views.Exchange
	tree     *views.Tree
	bundles  map[string]resource.Bundle
	now      time.Time
	out      strings.Builder
}

func newViewScript(o Options) *viewScript {
	s := &viewScript{Options: o, view: o.New(), tree: views.NewTree("", nil), bundles: make(map[string]resource.Bundle), now: time.UnixMilli(1_700_000_000_000)}
	for _, b := range Devices() {
		s.bundles[b.Device.Metadata.Name] = b
	}
	return s
}

func (s *viewScript) takeOutput() string {
	defer s.out.Reset()
	return s.out.String()
}

func (s *viewScript) run(line string) error {
	words := strings.Fields(line)
	switch words[0] {
	case "#":
		return nil
	case "connect":
		return s.connect(words[1])
	case "now":
		ms, err := strconv.ParseInt(words[1], 10, 64)
		s.now = time.UnixMilli(ms)
		return err
	}
	if s.exchange == nil {
		return fmt.Errorf("a file begins with connect")
	}
	switch words[0] {
	case "node":
		s.node(words[1], words[2:])
	case "device":
		return s.device(words[1], words[2:])
	case "patch":
		return s.patch(words[1], strings.TrimSpace(strings.TrimPrefix(line, "patch "+words[1])))
	case "remove":
		s.apply(topics.Address{Kind: topics.KindDevice, Device: words[1]}, nil)
	case "event", "refused", "past":
		return s.ofDevice(words)
	case "received", "found":
		rest := strings.TrimPrefix(line, words[0]+" ")
		origin := ""
		if by, marked := strings.CutPrefix(words[1], "origin="); marked {
			origin = by
			rest = strings.TrimPrefix(rest, words[1]+" ")
		}
		topic, payload, _ := strings.Cut(rest, " ")
		s.tell(&views.Received{Message: views.Message{Topic: topic, Payload: s.Read(payload), QoS: 1, Retain: words[0] == "found", Origin: origin}})
	case "settled":
		s.tell(&views.Settled{})
	case "ending":
		s.tell(&views.Ending{})
	default:
		return fmt.Errorf("%s: no such line", words[0])
	}
	return nil
}

func (s *viewScript) connect(number string) error {
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return err
	}
	s.exchange = views.NewExchange(s.view, n)
	c := s.exchange.Connection
	if c.Will != nil {
		s.print("will", *c.Will)
	}
	for _, f := range c.Filters {
		fmt.Fprintln(&s.out, "listen", f)
	}
	for _, f := range c.Retained {
		fmt.Fprintln(&s.out, "retains", f)
	}
	s.tree.Repeat()
	s.drain()
	return nil
}

func (s *viewScript) node(name string, words []string) {
	state, labels := "", map[string]string{}
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			labels[key] = value
		} else {
			state = w
		}
	}
	if state == "gone" {
		state, labels = "", nil
	}
	s.tree.Apply(topics.Address{Node: name, Kind: topics.KindState}.String(), []byte(state), s.now)
	m, err := json.Marshal(resource.Membership{Labels: labels})
	if labels == nil || err != nil {
		m = nil
	}
	s.tree.Apply(topics.Address{Node: name, Kind: topics.KindMembership}.String(), m, s.now)
	s.drain()
}

func (s *viewScript) device(name string, words []string) error {
	b, known := s.bundles[name]
	if !known {
		return fmt.Errorf("there is no Device %s: there are %s", name, slices.Sorted(maps.Keys(s.bundles)))
	}
	for _, w := range words {
		property, value, isValue := strings.Cut(w, "=")
		of, problem, isProblem := strings.Cut(w, "!")
		switch {
		case isProblem && !strings.Contains(of, "="):
			var payload []byte
			if problem != "" {
				payload = []byte(`{"code":"` + problem + `"}`)
			}
			s.set(topics.Address{Kind: topics.KindReadProblem, Device: name, Name: of}, payload)
		case isValue:
			s.set(topics.Address{Kind: topics.KindReported, Device: name, Name: property}, []byte(strings.ReplaceAll(value, "_", " ")))
		default:
			s.set(topics.Address{Kind: topics.KindDeviceState, Device: name}, []byte(w))
		}
	}
	if s.tree.Device(Node, name) == nil {
		document, err := json.Marshal(b)
		if err != nil {
			return err
		}
		s.set(topics.Address{Kind: topics.KindDevice, Device: name}, document)
	}
	s.drain()
	return nil
}

func (s *viewScript) patch(name, patch string) error {
	before, err := json.Marshal(s.bundles[name])
	if err != nil {
		return err
	}
	after, err := jsonpatch.MergePatch(before, []byte(patch))
	if err != nil {
		return err
	}
	var b resource.Bundle
	if err := json.Unmarshal(after, &b); err != nil {
		return err
	}
	s.bundles[name] = b
	s.apply(topics.Address{Kind: topics.KindDevice, Device: name}, after)
	return nil
}

// ofDevice tells what is told of a Device besides its changes.
func (s *viewScript) ofDevice(words []string) error {
	d := s.tree.Device(Node, words[1])
	if d == nil || len(words) < 3 {
		return fmt.Errorf("%s: the view doesn't know of this Device", words[1])
	}
	rest := strings.Join(words[3:], " ")
	switch words[0] {
	case "event":
		s.tell(&views.Happened{Device: d, Name: words[2], Payload: []byte(rest)})
	case "refused":
		s.tell(&views.Refused{Device: d, Properties: []string{words[2]}, Reason: rest})
	case "past":
		e := &views.Past{Device: d, Last: true}
		for i := 2; i+1 < len(words); i += 2 {
			ms, err := strconv.ParseInt(words[i], 10, 64)
			if err != nil {
				return err
			}
			property, value, _ := strings.Cut(words[i+1], "=")
			e.Samples = append(e.Samples, views.Sample{Property: property, Text: value, Known: value != "", At: time.UnixMilli(ms)})
		}
		s.tell(e)
	}
	return nil
}

func (s *viewScript) set(a topics.Address, payload []byte) {
	a.Node = Node
	s.tree.Apply(a.String(), payload, s.now)
}

func (s *viewScript) apply(a topics.Address, payload []byte) {
	s.set(a, payload)
	s.drain()
}

// drain tells the view what has changed.
func (s *viewScript) drain() {
	for e := s.tree.Next(); e != nil; e = s.tree.Next() {
		s.tell(e)
	}
}

func (s *viewScript) tell(e views.Event) {
	at := s.now
	s.now = s.now.Add(time.Millisecond)
	for _, a := range s.exchange.Tell(at, e) {
		switch a := a.(type) {
		case *views.Publish:
			if m := a.Message; m.Retain && len(m.Payload) == 0 {
				fmt.Fprintln(&s.out, "clear", m.Topic)
			} else {
				s.print("publish", m)
			}
		case *views.Set:
			fmt.Fprintf(&s.out, "set %s/%s", a.Node, a.Device)
			for _, p := range slices.Sorted(maps.Keys(a.Values)) {
				fmt.Fprintf(&s.out, " %s=%s", p, a.Values[p])
			}
			fmt.Fprintln(&s.out)
		case *views.Call:
			fmt.Fprintln(&s.out, strings.TrimRight(fmt.Sprintf("call %s/%s %s %s", a.Node, a.Device, a.Command, a.Payload), " "))
		case *views.Replay:
			fmt.Fprintf(&s.out, "replay %s/%s since %d\n", a.Node, a.Device, a.Since.UnixMilli())
		case *views.Reject:
			fmt.Fprintln(&s.out, strings.TrimRight(fmt.Sprintf("reject %s/%s %s", a.Node, a.Device, a.Reason), " "))
		case *views.Reconnect:
			fmt.Fprintln(&s.out, "reconnect")
		case *views.Repeat:
			fmt.Fprintln(&s.out, "repeat")
			s.tree.Repeat()
			s.drain()
			s.tell(&views.Settled{})
		}
	}
}

func (s *viewScript) print(what string, m views.Message) {
	if m.Retain {
		what += " retained"
	}
	fmt.Fprintln(&s.out, what, m.Topic, s.Print(m))
}
