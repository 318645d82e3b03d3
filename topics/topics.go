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

func (e *Error) Error() string { return fmt.Sprintf("topic %s: %s", clip(e.Topic), e.Rule) }

// clip quotes a name and shortens a long one, for logs and reason strings. Escaping may make a name ten times as long.
func clip(s string) string {
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
	return within(topic, Prefix) || within(topic, RefusedPrefix)
}

// within reports whether a topic is below a prefix, which ends with a slash, or what stands before that.
func within(topic, prefix string) bool {
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
	a, bad := parse(node, key)
	if bad != nil {
		bad.Topic = topic
		return a, bad
	}
	return a, nil
}

// ParseKey reads a key of a node's tree: a topic without v1/nodes/{node}/.
func ParseKey(node, key string) (Address, error) {
	a, bad := parse(node, key)
	if bad != nil {
		return a, bad
	}
	return a, nil
}

func parse(node, key string) (Address, *Error) {
	if !ValidName(node) {
		return Address{}, &Error{key, "bad node name: " + nameRule}
	}
	if rule := topicRule(key); rule != "" {
		return Address{}, &Error{key, rule}
	}
	a, rule := parseKey(key)
	if rule != "" {
		return Address{}, &Error{key, rule}
	}
	a.Node = node
	return a, nil
}

func parseKey(key string) (Address, string) {
	head, rest, more := strings.Cut(key, "/")
	switch head {
	case "devices":
		return parseDevice(rest)
	case "discovery":
		return parseDiscovery(rest)
	case "secrets":
		return parseSecret(rest)
	case "mappers":
		name, tail, _ := strings.Cut(rest, "/")
		kind, ok := mapperLeaf[tail]
		if !ok {
			return Address{}, "only state and protocols are defined below mappers/{mapper}/"
		}
		return named(Address{Kind: kind, Device: name})
	case "enroll":
		request, tail, more := strings.Cut(rest, "/")
		kind := KindEnroll
		if more {
			kind = KindEnrolled
		}
		if more && tail != "answer" {
			return Address{}, "only answer is defined below enroll/{request}/"
		}
		return named(Address{Kind: kind, Device: request})
	case "blobs":
		if rest == "get" {
			return Address{Kind: KindBlobGet}, ""
		}
		request, ok := strings.CutPrefix(rest, "answers/")
		if !ok {
			return Address{}, "only get and answers/{request} are defined below blobs"
		}
		return named(Address{Kind: KindBlobAnswer, Device: request})
	case "bridge":
		if rest == "" {
			return Address{}, "nothing after bridge/"
		}
		return Address{Kind: KindBridge, Name: rest}, ""
	case "spec", "membership":
		if part, ok := strings.CutPrefix(rest, "parts/"); ok {
			kind := KindSpecPart
			if head == "membership" {
				kind = KindMembershipPart
			}
			return named(Address{Kind: kind, Name: part})
		}
	}
	if kind, ok := plain[key]; ok {
		return Address{Kind: kind}, ""
	}
	if !more {
		return Address{}, "no such topic below the node"
	}
	return Address{}, "no such topic below " + clip(head)
}

// The words of the contract's patterns by where they stand: a whole key, mappers/{mapper}/WORD, devices/{device}/WORD, and
// devices/{device}/WORD/{name}.
var (
	plain        = words("", "")
	mapperLeaf   = words("mappers/{mapper}/", "")
	deviceLeaf   = words("devices/{device}/", "")
	deviceBranch = words("devices/{device}/", "/")
)

// words finds the patterns that are head, a word, and nothing else or, with tail, a name or the rest of the topic.
func words(head, tail string) map[string]Kind {
	out := make(map[string]Kind)
	for _, row := range table {
		word, ok := strings.CutPrefix(row.Pattern, head)
		if !ok {
			continue
		}
		if tail != "" {
			word, _, ok = strings.Cut(word, tail)
		}
		if ok && !strings.ContainsAny(word, "{#") {
			out[word] = row.Kind
		}
	}
	return out
}

func parseDevice(rest string) (Address, string) {
	device, rest, more := strings.Cut(rest, "/")
	a := Address{Kind: KindDevice, Device: device}
	if !more {
		return named(a)
	}
	word, name, more := strings.Cut(rest, "/")
	kinds := deviceLeaf
	if more {
		kinds, a.Name = deviceBranch, name
	}
	kind, ok := kinds[word]
	if !ok {
		return Address{}, "no such topic below a device"
	}
	a.Kind = kind
	return named(a)
}

func parseDiscovery(rest string) (Address, string) {
	conf, rest, more := strings.Cut(rest, "/")
	if !more {
		return named(Address{Kind: KindDiscovery, Device: conf})
	}
	if rest == "handler" {
		return named(Address{Kind: KindDiscoveryHandler, Device: conf})
	}
	inst, ok := strings.CutPrefix(rest, "instances/")
	if !ok {
		return Address{}, "only handler and instances/{instance} are defined below a configuration"
	}
	return named(Address{Kind: KindInstance, Device: conf, Name: inst})
}

// discoverySecrets stands where the name of a Secret does, which has a dot in it, after its namespace.
const discoverySecrets = "discovery"

func parseSecret(rest string) (Address, string) {
	secret, rest, more := strings.Cut(rest, "/")
	if !more {
		return named(Address{Kind: KindSecret, Device: secret})
	}
	part, ok := strings.CutPrefix(rest, "parts/")
	if !ok && secret == discoverySecrets {
		return named(Address{Kind: KindDiscoverySecret, Device: rest})
	}
	if !ok {
		return Address{}, "only parts/{part} is defined below a secret"
	}
	return named(Address{Kind: KindSecretPart, Device: secret, Name: part})
}

// named checks the names in an address against the rules for its kind.
func named(a Address) (Address, string) {
	first := a.Kind != KindSpecPart && a.Kind != KindMembershipPart
	if first && !ValidName(a.Device) {
		return Address{}, fmt.Sprintf("bad name %s: %s", clip(a.Device), nameRule)
	}
	switch a.Kind {
	case KindDesired, KindReported, KindRefused, KindReadProblem, KindOverride, KindConflict, KindCommand, KindAnswer:
		if !ValidProperty(a.Name) {
			return Address{}, fmt.Sprintf("bad property %s: %s", clip(a.Name), propertyRule)
		}
	case KindInstance, KindDevicePart, KindSecretPart, KindSpecPart, KindMembershipPart:
		if !ValidName(a.Name) {
			return Address{}, fmt.Sprintf("bad name %s: %s", clip(a.Name), nameRule)
		}
	case KindTelemetry, KindEvents:
		if a.Name == "" {
			return Address{}, "a stream needs a name: …/telemetry/{name}"
		}
	}
	return a, ""
}

// String is the whole topic; Parse reads it back.
func (a Address) String() string { return TopicOf(a.Node, a.Key()) }

// TopicOf joins a node's name and a key to the topic.
func TopicOf(node, key string) string { return Prefix + node + "/" + key }

// Key is the topic without v1/nodes/{node}/.
func (a Address) Key() string {
	switch a.Kind {
	case KindNone:
		return ""
	case KindDevice:
		return "devices/" + a.Device
	case KindDiscovery:
		return "discovery/" + a.Device
	case KindDiscoveryHandler:
		return "discovery/" + a.Device + "/handler"
	case KindInstance:
		return "discovery/" + a.Device + "/instances/" + a.Name
	case KindSecret:
		return "secrets/" + a.Device
	case KindDiscoverySecret:
		return "secrets/" + discoverySecrets + "/" + a.Device
	case KindSecretPart:
		return "secrets/" + a.Device + "/parts/" + a.Name
	case KindBridge:
		return "bridge/" + a.Name
	case KindEnroll:
		return "enroll/" + a.Device
	case KindEnrolled:
		return "enroll/" + a.Device + "/answer"
	case KindBlobAnswer:
		return "blobs/answers/" + a.Device
	case KindSpecPart:
		return "spec/parts/" + a.Name
	case KindMembershipPart:
		return "membership/parts/" + a.Name
	}
	if key, ok := plainWord[a.Kind]; ok {
		return key
	}
	if word, ok := mapperWord[a.Kind]; ok {
		return "mappers/" + a.Device + "/" + word
	}
	if word, ok := leafWord[a.Kind]; ok {
		return "devices/" + a.Device + "/" + word
	}
	return "devices/" + a.Device + "/" + branchWord[a.Kind] + "/" + a.Name
}

// The same words by kind.
var plainWord, leafWord, mapperWord, branchWord = invert(plain), invert(deviceLeaf), invert(mapperLeaf), invert(deviceBranch)

func invert(words map[string]Kind) map[Kind]string {
	out := make(map[Kind]string, len(words))
	for word, kind := range words {
		out[kind] = word
	}
	return out
}

// DeviceKey is the key of a property of a device: kind is one of KindDesired,
// KindReported, KindRefused, KindReadProblem, KindOverride and KindConflict.
func DeviceKey(device string, kind Kind, property string) string {
	return "devices/" + device + "/" + branchWord[kind] + "/" + property
}

// Sync names the two topics of a node's link.
func Sync(node string) (up, down string) {
	return Prefix + node + "/sync/up", Prefix + node + "/sync/down"
}

const (
	nameRule     = "1–253 characters of a–z, 0–9, '-' and '.', beginning and ending with a letter or digit"
	propertyRule = "1–253 characters of a–z, A–Z, 0–9, '-', '.' and '_', beginning and ending with a letter or digit"
)

// ValidName reports whether s may name a node, device, configuration, mapper or instance.
func ValidName(s string) bool { return valid(s, false) }

// ValidProperty reports whether s may name a property or a command.
func ValidProperty(s string) bool { return valid(s, true) }

// NameRule puts ValidName's rule in words, for error messages.
func NameRule() string { return nameRule }

// PropertyRule puts ValidProperty's rule in words.
func PropertyRule() string { return propertyRule }

func valid(s string, property bool) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', property && c >= 'A' && c <= 'Z':
		case (c == '-' || c == '.' || property && c == '_') && i > 0 && i < len(s)-1:
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
	case strings.ContainsRune(topic, 0):
		return "contains NUL"
	case topic[0] == '$':
		return "topics that begin with $ belong to the broker"
	}
	return ""
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
	case strings.ContainsRune(filter, 0):
		return &Error{filter, "contains NUL"}
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
