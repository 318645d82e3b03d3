// SPDX-License-Identifier: Apache-2.0

package topics

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// Version is the first level of every topic of the tree.
	Version = "v1"
	// Prefix stands before the name of the node in every topic of a tree.
	Prefix = "v1/nodes/"
	// RefusedPrefix stands before a client's id: where a broker tells an MQTT
	// 3.1.1 client, which can't be given a reason code, what it refused.
	RefusedPrefix = "v1/refused/"

	maxName  = 253
	maxTopic = 65535
)

// Error says what is wrong with a topic, a filter or a name.
type Error struct {
	Topic string // what was given
	Rule  string // the rule that it breaks
}

func (e *Error) Error() string { return fmt.Sprintf("topic %s: %s", QuoteTopic(e.Topic), e.Rule) }

// Reason is the rule before the topic, for a reader that sees the beginning only.
func (e *Error) Reason() string { return e.Rule + ": topic " + QuoteTopic(e.Topic) }

// QuoteTopic quotes a topic or a name and shortens a long one, for logs and reason strings. Escaping may make a name ten times as long.
func QuoteTopic(s string) string {
	q := fmt.Sprintf("%.120q", s)
	if len(q) > 480 {
		q = fmt.Sprintf("%.40q", s)
	} else if len(s) <= 120 {
		return q
	}
	return fmt.Sprintf("%s… (%d bytes)", q, len(s))
}

// Address is a parsed topic of a node's tree.
type Address struct {
	Node   string
	Kind   Kind
	Device string // the device, secret, configuration, mapper, enrolment request or blob request, whichever the kind has first
	Name   string // the property, command, call, instance or part, or the rest of a stream's topic
}

// IsBridged reports whether the topic is a users' own that came from a node.
func IsBridged(topic string) bool {
	rest, ok := strings.CutPrefix(topic, Prefix)
	_, key, _ := strings.Cut(rest, "/")
	return ok && strings.HasPrefix(key, "bridge/")
}

// IsTree reports whether the topic is reserved for the bus: v1/nodes, v1/refused and all below them.
// Any other below v1 is the users' own.
func IsTree(topic string) bool {
	return isWithin(topic, Prefix) || isWithin(topic, RefusedPrefix)
}

// isWithin reports whether a topic is below a prefix, which ends with a slash, or what stands before that.
func isWithin(topic, prefix string) bool {
	return strings.HasPrefix(topic, prefix) || topic == prefix[:len(prefix)-1]
}

// Parse reads a topic of a node's tree. Its errors are *Error.
func Parse(topic string) (Address, error) {
	rest, ok := strings.CutPrefix(topic, Prefix)
	if !ok {
		return Address{}, &Error{topic, "not below " + Prefix}
	}
	node, key, ok := strings.Cut(rest, "/")
	if !ok {
		return Address{}, &Error{topic, "nothing after the node's name"}
	}
	return parse(topic, node, key)
}

// ParseKey reads a key of a node's tree: a topic without v1/nodes/{node}/.
func ParseKey(node, key string) (Address, error) { return parse(key, node, key) }

// parse names in its errors what was given: the topic or the key.
func parse(given, node, key string) (Address, error) {
	if !ValidName(node) {
		return Address{}, &Error{given, "bad node name: " + nameRule}
	}
	rule := topicRule(key)
	var a Address
	if rule == "" {
		a, rule = parseKey(key)
	}
	if rule != "" {
		return Address{}, &Error{given, rule}
	}
	a.Node = node
	return a, nil
}

// keyShape is how keys of a kind are written: head, Device, middle, Name.
type keyShape struct {
	row          Topic
	head, middle string
	device       bool   // there is a Device
	name         string // how the pattern writes the Name; empty: there is none
}

// patternStep is a place in the tree of patterns: the words or the name that may follow there, and the kind of a key that ends there.
// A word goes before a name: secrets/discovery is never a Secret, whose name has a dot.
type patternStep struct {
	word  string
	kind  Kind
	words []*patternStep
	name  *patternStep // if no step follows it, all the rest of the key
}

var keyShapes, patternSteps = readPatterns()

// readPatterns takes the patterns of the table apart, for formatting and for parsing.
func readPatterns() (shapes [KindHistoryWanted + 1]keyShape, root patternStep) {
	for _, row := range contractTable {
		at, s := &root, keyShape{row: row}
		text := &s.head
		for i, level := range strings.Split(row.Pattern, "/") {
			if i > 0 {
				*text += "/"
			}
			at = at.add(level)
			switch {
			case !isName(level):
				*text += level
			case s.device || level == "{part}" || level == "#": // these are the Name also where they are the only name
				s.name = level
			default:
				s.device, text = true, &s.middle
			}
		}
		at.kind, shapes[row.Kind] = row.Kind, s
	}
	return shapes, root
}

func isName(level string) bool { return level[0] == '{' || level == "#" }

// add returns the step at a level of a pattern, which is added if it is missing.
func (s *patternStep) add(level string) *patternStep {
	if isName(level) {
		if s.name == nil {
			s.name = new(patternStep)
		}
		return s.name
	}
	next := s.at(level)
	if next == nil {
		next = &patternStep{word: level}
		s.words = append(s.words, next)
	}
	return next
}

// at returns the step at a word, or nil.
func (s *patternStep) at(word string) *patternStep {
	for _, next := range s.words {
		if next.word == word {
			return next
		}
	}
	return nil
}

// parseKey returns the rule that a key breaks, or nothing.
func parseKey(key string) (Address, string) {
	var names [2]string
	n := 0
	s, rest, more := &patternSteps, key, true
	for more {
		level, tail, further := strings.Cut(rest, "/")
		next := s.at(level)
		if next == nil {
			if next = s.name; next == nil {
				return Address{}, noSuchTopic(key)
			}
			if next.words == nil && next.name == nil {
				level, further = rest, false
			}
			names[n] = level
			n++
		}
		s, rest, more = next, tail, further
	}
	if s.kind == KindNone {
		return Address{}, noSuchTopic(key)
	}
	a := Address{Kind: s.kind, Device: names[0], Name: names[1]}
	if !keyShapes[a.Kind].device {
		a.Device, a.Name = "", names[0]
	}
	return a, checkNames(&a)
}

// noSuchTopic says what there is in the place of a key that is not in the table.
func noSuchTopic(key string) string {
	if s := patternSteps.at(key); s != nil && s.name != nil && s.name.kind != KindNone {
		return checkNames(&Address{Kind: s.name.kind}) // the name is missing
	}
	head, _, more := strings.Cut(key, "/")
	switch {
	case head == "devices":
		return "no such topic below a device"
	case head == "discovery":
		return "only handler and instances/{instance} are defined below a configuration"
	case head == "secrets":
		return "only parts/{part} is defined below a secret"
	case head == "mappers":
		return "only state, protocols and settings are defined below mappers/{mapper}/"
	case head == "enroll":
		return "only answer is defined below enroll/{request}/"
	case head == "history":
		return "only copy and answers/{request} are defined below history"
	case head == "rules":
		return "only requests and answers/{request} are defined below rules"
	case head == "blobs":
		return "only get and answers/{request} are defined below blobs"
	case !more:
		return "no such topic below the node"
	}
	return "no such topic below " + QuoteTopic(head)
}

// checkNames returns the rule that a name in an address breaks, or nothing.
func checkNames(a *Address) string {
	s := &keyShapes[a.Kind]
	if s.device && !ValidName(a.Device) {
		return fmt.Sprintf("bad name %s: %s", QuoteTopic(a.Device), nameRule)
	}
	switch s.name {
	case "{property}", "{name}", "{call}":
		if !ValidProperty(a.Name) {
			return fmt.Sprintf("bad property %s: %s", QuoteTopic(a.Name), propertyRule)
		}
	case "{instance}", "{part}":
		if !ValidName(a.Name) {
			return fmt.Sprintf("bad name %s: %s", QuoteTopic(a.Name), nameRule)
		}
	case "#":
		switch {
		case a.Name == "" && a.Kind == KindBridge:
			return "nothing after bridge/"
		case a.Name == "":
			return "a stream needs a name: …/telemetry/{name}"
		}
	}
	return ""
}

// String is the whole topic; Parse reads it back.
func (a Address) String() string { return TopicOf(a.Node, a.Key()) }

// TopicOf joins a node's name and a key to the topic.
func TopicOf(node, key string) string { return Prefix + node + "/" + key }

// Key is the topic without v1/nodes/{node}/.
func (a Address) Key() string {
	s := &keyShapes[a.Kind]
	if !s.device {
		a.Device = ""
	}
	if s.name == "" {
		a.Name = ""
	}
	return s.head + a.Device + s.middle + a.Name
}

// DeviceKey is the key of a property of a device: kind is one of KindDesired,
// KindReported, KindRefused, KindReadProblem, KindOverride, KindConflict and KindAlarms.
func DeviceKey(device string, kind Kind, property string) string {
	return Address{Kind: kind, Device: device, Name: property}.Key()
}

// SyncTopics names the two topics of a node's link.
func SyncTopics(node string) (up, down string) {
	return Prefix + node + "/sync/up", Prefix + node + "/sync/down"
}

const (
	nameRule     = "1–253 characters of a–z, 0–9, '-' and '.', beginning and ending with a letter or digit, as does each part between dots"
	propertyRule = "1–253 characters of a–z, A–Z, 0–9, '-', '.' and '_', beginning and ending with a letter or digit"
)

// ValidName reports whether s may name a node, device, configuration, mapper or instance.
func ValidName(s string) bool { return isValidName(s, false) }

// ValidProperty reports whether s may name a property or a command.
func ValidProperty(s string) bool { return isValidName(s, true) }

// NameRule puts ValidName's rule in words, for error messages.
func NameRule() string { return nameRule }

// PropertyRule puts ValidProperty's rule in words.
func PropertyRule() string { return propertyRule }

func isValidName(s string, property bool) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', property && c >= 'A' && c <= 'Z':
		case (c == '-' || c == '.' || property && c == '_') && i > 0 && i < len(s)-1:
			if before := s[i-1]; !property && (before == '.' || before == '-' && c == '.') {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// CheckTopic refuses what no client may publish to, on any topic.
func CheckTopic(topic string) error {
	if rule := topicRule(topic); rule != "" {
		return &Error{topic, rule}
	}
	return nil
}

func topicRule(topic string) string {
	switch {
	case topic == "":
		return "empty topic"
	case len(topic) > maxTopic:
		return "longer than 65,535 bytes"
	case !utf8.ValidString(topic):
		return "not valid UTF-8"
	case strings.ContainsAny(topic, "+#"):
		return "a topic to publish to can't contain the wildcards + and #"
	case !IsReadable(topic):
		return unreadableRule
	case topic[0] == '$':
		return "topics that begin with $ belong to the broker"
	}
	return ""
}

const unreadableRule = "contains NUL or another control character, or a non-character of Unicode, at which some clients end their connection"

// IsReadable reports whether a text has none of the characters that MQTT advises against (1.5.4): control characters and
// non-characters. Other people's clients and brokers take a packet that has one for malformed.
func IsReadable(text string) bool { return strings.IndexFunc(text, isUnreadableRune) < 0 }

// MakeReadable replaces what is not Readable, and what is not UTF-8: line feeds and tabs by a space, all else by U+FFFD.
func MakeReadable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case isUnreadableRune(r):
			return utf8.RuneError
		}
		return r
	}, text)
}

func isUnreadableRune(r rune) bool {
	return r < ' ' || r >= 0x7F && r < 0xA0 || r >= 0xFDD0 && (r <= 0xFDEF || r&0xFFFE == 0xFFFE)
}

// CheckFilter refuses what no client may subscribe to. A shared subscription's
// $share/{group}/ is checked and taken off.
func CheckFilter(filter string) error {
	_, rest, err := SplitShare(filter)
	if err != nil {
		return err
	}
	switch {
	case rest == "":
		return &Error{filter, "empty filter"}
	case len(filter) > maxTopic:
		return &Error{filter, "longer than 65,535 bytes"}
	case !utf8.ValidString(filter):
		return &Error{filter, "not valid UTF-8"}
	case !IsReadable(filter):
		return &Error{filter, unreadableRule}
	}
	levels := strings.Split(rest, "/")
	for i, level := range levels {
		switch {
		case level == "#" && i < len(levels)-1:
			return &Error{filter, "# stands only at the end"}
		case len(level) > 1 && strings.ContainsAny(level, "+#"):
			return &Error{filter, "a wildcard stands alone in its level"}
		}
	}
	return nil
}

// SplitShare takes $share/{group}/ off a filter; group is empty for a plain one.
func SplitShare(filter string) (group, rest string, err error) {
	tail, ok := strings.CutPrefix(filter, "$share/")
	if !ok {
		return "", filter, nil
	}
	group, rest, ok = strings.Cut(tail, "/")
	if !ok || group == "" || rest == "" || strings.ContainsAny(group, "+#") {
		return "", "", &Error{filter, "a shared subscription is $share/{group}/{filter}"}
	}
	return group, rest, nil
}

// CoversFilter reports whether wide matches every topic that filter matches. It takes plain filters, and allocates nothing.
func CoversFilter(wide, filter string) bool {
	if strings.HasPrefix(filter, "$") && !strings.HasPrefix(wide, "$") {
		return false // wildcards at the first level leave out what is the broker's
	}
	for {
		wl, wrest, wmore := strings.Cut(wide, "/")
		if wl == "#" {
			return true
		}
		fl, frest, fmore := strings.Cut(filter, "/")
		if fl == "#" || wl != "+" && wl != fl {
			return false
		}
		if !wmore || !fmore {
			return wmore == fmore || wrest == "#"
		}
		wide, filter = wrest, frest
	}
}

// Match reports whether the filter covers the topic, by MQTT's rules. It takes a
// plain filter (see SplitShare) and allocates nothing.
func Match(filter, topic string) bool {
	if topic != "" && topic[0] == '$' && filter != "" && filter[0] != '$' {
		return false // wildcards at the first level leave out what is the broker's
	}
	for {
		fl, frest, fmore := strings.Cut(filter, "/")
		if fl == "#" {
			return true
		}
		tl, trest, tmore := strings.Cut(topic, "/")
		if fl != "+" && fl != tl {
			return false
		}
		if !tmore {
			return !fmore || frest == "#"
		}
		if !fmore {
			return false
		}
		filter, topic = frest, trest
	}
}
