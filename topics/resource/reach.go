package resource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Problem is the payload of devices/{device}/problem: why a device is not online, as its mapper knows it; and of
// devices/{device}/problem/{property}: why a property of it can't be read.
type Problem struct {
	Code    string `json:"code"`              // why, in one word
	Message string `json:"message,omitempty"` // why, for a reader
	Since   string `json:"since,omitempty"`   // of a property: when it was last read
}

// The codes that mappers on the SDK use. For a property that can't be read they use those of refusals, too.
const (
	BadConfig   = "BadConfig"   // the Device or its model says something that can't work
	Unreachable = "Unreachable" // the device does not answer as it should
	ReadFailed  = "ReadFailed"  // the property can't be read, and no other code fits
)

// ParseProblem reads the payload of problem.
func ParseProblem(payload []byte) (Problem, error) {
	var p Problem
	if err := json.Unmarshal(payload, &p); err != nil {
		return p, Errorf(Invalid, "problem", "the payload must be JSON such as {\"code\":\"Unreachable\",\"message\":\"…\"}")
	}
	if p.Code == "" {
		return p, Errorf(Invalid, "problem.code", "must say why in one word, such as Unreachable")
	}
	if _, err := ParseTime(p.Since); p.Since != "" && err != nil {
		return p, Errorf(Invalid, "problem.since", "%v", err)
	}
	return p, nil
}

// ParseProtocols reads the payload of mappers/{mapper}/protocols.
func ParseProtocols(payload []byte) ([]string, error) {
	var list []string
	if err := json.Unmarshal(payload, &list); err != nil || len(list) == 0 || slices.Contains(list, "") {
		return nil, Errorf(Invalid, "protocols", "the payload must be a JSON array of names, such as [\"modbus\"]")
	}
	return list, nil
}

// SameProtocol says whether two names mean one protocol: Modbus-TCP and modbustcp do.
func SameProtocol(a, b string) bool { return plainName(a) == plainName(b) }

func plainName(protocol string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", " ", "").Replace(protocol))
}

// Mapper is what is known of a mapper on a node.
type Mapper struct {
	Name      string
	Online    bool
	Protocols []string // none: it has not said
}

func (m Mapper) speaks(protocol string) bool {
	return slices.ContainsFunc(m.Protocols, func(p string) bool { return SameProtocol(p, protocol) })
}

func (m Mapper) String() string {
	if len(m.Protocols) == 0 {
		return m.Name + " (has not said what it speaks)"
	}
	return m.Name + " (" + strings.Join(m.Protocols, ", ") + ")"
}

// Reach is what stands between a node and a device that belongs to it.
type Reach struct {
	Node       string // empty: it belongs to none
	Registered bool   // there is a Node of that name
	Away       bool   // the node is offline
	Local      bool   // its state stays on the node, and this is not asked there
	Protocol   string
	State      string   // as its mapper said; empty: nothing
	Problem    *Problem // the same
	Mappers    []Mapper // of the node
}

// ConditionOnline says whether a device is online, and why it isn't.
const ConditionOnline = "Online"

// ConditionNodeOnline says whether a device's node is online. A device whose node never was away has none.
const ConditionNodeOnline = "NodeOnline"

// The reasons of the condition Online, besides the codes of Problem.
const (
	ReasonNoNode   = "NoNode"      // the device belongs to no node
	ReasonNoSuch   = "NoSuchNode"  // its node has never been there
	ReasonAway     = "NodeOffline" // so nobody knows
	ReasonNoMapper = "NoMapper"    // no mapper that is connected speaks its protocol
	ReasonNotHeard = "NotHeard"    // one does, and has not spoken of it
)

// Condition puts it in words.
func (r Reach) Condition() Condition {
	c := Condition{Type: ConditionOnline, Status: "Unknown"}
	switch {
	case r.Node == "":
		c.Reason, c.Message = ReasonNoNode, "it belongs to no node: spec.nodeName is empty"
	case r.Stray():
		c.Reason, c.Message = ReasonNoSuch, "no Node "+r.Node+" is registered: one is when its core first connects; is spec.nodeName right?"
	case r.Away:
		c.Reason, c.Message = ReasonAway, "node "+r.Node+" is offline"
	case r.Local:
		c.Reason, c.Message = ReasonLocal, "its state stays on node "+r.Node+" (spec.localState)"
	case r.State == Online:
		c.Status, c.Reason = "True", "Online"
	case r.Problem != nil:
		c.Status, c.Reason, c.Message = "False", r.Problem.Code, r.Problem.Message
	case r.State == Offline:
		c.Status, c.Reason, c.Message = "False", "Offline", "its mapper does not reach it, and has not said why"
	default:
		c.Reason, c.Message = r.unheard()
	}
	return c
}

// Stray says whether the device is bound to a node that nobody has heard of.
func (r Reach) Stray() bool { return r.Node != "" && !r.Registered }

// unheard is why no mapper speaks for the device.
func (r Reach) unheard() (reason, message string) {
	var there, gone []string // there: whatever they speak; gone: those that spoke it
	said := true
	for _, m := range r.Mappers {
		switch {
		case m.Online && m.speaks(r.Protocol):
			return ReasonNotHeard, fmt.Sprintf("mapper %s is connected and has not said how it is", m.Name)
		case m.Online:
			there = append(there, m.String())
			said = said && len(m.Protocols) > 0
		case m.speaks(r.Protocol):
			gone = append(gone, m.Name)
		}
	}
	switch {
	case len(gone) > 0:
		return ReasonNoMapper, fmt.Sprintf("mapper %s, which speaks %s, is not connected to node %s", strings.Join(gone, ", "), clip(r.Protocol), r.Node)
	case len(there) == 0:
		return ReasonNoMapper, fmt.Sprintf("no mapper is connected to node %s", r.Node)
	case !said:
		return ReasonNoMapper, fmt.Sprintf("no mapper on %s has said that it speaks %s; connected mappers: %s", r.Node, clip(r.Protocol), strings.Join(there, ", "))
	}
	return ReasonNoMapper, fmt.Sprintf("no mapper on %s speaks %s; connected mappers: %s", r.Node, clip(r.Protocol), strings.Join(there, ", "))
}
