package resource

import (
	"fmt"
	"strconv"
	"strings"
)

// LinkReport is what one end of the link says of itself when it is asked: the hub of
// the nodes that it knows, a core of its own. It is made for the asking, kept
// nowhere, and no object of the API.
type LinkReport struct {
	Program string `json:"program"` // cloudhub, edgecore
	Version string `json:"version,omitempty"`
	Now     string `json:"now"` // by this end's clock
	// Hub is the hub's identity; of a core that of the hub that it is connected to.
	Hub string `json:"hub,omitempty"`
	// Failing are the stores whose last commit failed, and why.
	Failing map[string]string `json:"failing,omitempty"`
	// Gone is what of the data directory was removed, moved or replaced while the program was using it.
	Gone string `json:"gone,omitempty"`
	// Short says that connections were refused in the last minute for lack of file descriptors.
	Short string `json:"short,omitempty"`
	// Damaged are the stores that have found damage in their files, go on, and won't open again.
	Damaged map[string]string `json:"damaged,omitempty"`
	// Rules says why the file of rules for users' own topics, as it is now, is not in force.
	Rules string `json:"rules,omitempty"`
	// FullestQueue is how full the fullest queue of this end's broker is, from 0 to 1.
	FullestQueue float64 `json:"fullestQueue,omitempty"`
	// FullestOf is the client whose queue that is, and Missed how many messages sessions had no
	// room for and went without, since this end's start.
	FullestOf string `json:"fullestOf,omitempty"`
	Missed    int64  `json:"missed,omitempty"`
	// Refused are the publishes that this end's broker refused since its start, by kind of error.
	Refused map[string]int64 `json:"refused,omitempty"`
	// Streams are what a core keeps for the hub beside the map; nil of a hub.
	Streams *StreamReport `json:"streams,omitempty"`
	// Owned is what a core's node owns, and may; nil of a hub.
	Owned *Usage `json:"owned,omitempty"`
	// Links are the worst first. More is how many there are beyond them.
	Links []Link `json:"links"`
	More  int    `json:"more,omitempty"`
}

// StreamReport is how a core's telemetry, events and bridged messages fare.
type StreamReport struct {
	Waiting      int              `json:"waiting"`
	Seconds      float64          `json:"seconds"`           // the age of the oldest
	Dropped      map[string]int64 `json:"dropped,omitempty"` // since the core's start, by reason
	RefusedRules int              `json:"refusedRules"`      // bridge rules that the hub doesn't permit
}

// Usage is how much a node owns of what it may own. A most of 0 is no limit.
type Usage struct {
	Keys      int `json:"keys"`
	MostKeys  int `json:"mostKeys"`
	Bytes     int `json:"bytes"`
	MostBytes int `json:"mostBytes"`
}

// Alone is the state of the link of a core that has no hub, by its settings.
const Alone = "alone"

// Link is a node's link as one end sees it. Counts are since that end's start.
type Link struct {
	Node     string `json:"node"`
	State    string `json:"state"`              // online, offline, unknown, alone
	Since    string `json:"since,omitempty"`    // when that began; empty: before this end's start
	LastSeen string `json:"lastSeen,omitempty"` // when the other end was last heard
	// InStep: in this connection the other end has said that it has everything of the
	// map that this end owns.
	InStep bool `json:"inStep"`
	// Behind is what the other end lacks of it; missing where that can't be known.
	Behind      *Behind `json:"behind,omitempty"`
	Peer        string  `json:"peer,omitempty"`    // the other end's address
	Version     string  `json:"version,omitempty"` // of the node's core
	Connections int     `json:"connections"`
	Failures    int     `json:"failures,omitempty"`  // attempts to connect that came to nothing
	Takeovers   int     `json:"takeovers,omitempty"` // connections that the same name ended elsewhere
	LastError   string  `json:"lastError,omitempty"` // why there is no connection, or why the last one ended
	// ClockAhead is how many seconds the node's clock is ahead of the hub's.
	ClockAhead *float64 `json:"clockAhead,omitempty"`
	// CertificateExpires is when the certificate of either end does, whichever is first.
	CertificateExpires string `json:"certificateExpires,omitempty"`
	// SpecFailed is the version of its spec that the node's agent could not apply, and why; empty: none.
	SpecFailed string `json:"specFailed,omitempty"`
	// RenewalError is why the node's certificate could not be renewed, of a core that renews it, and RenewalFails since when.
	RenewalError string     `json:"renewalError,omitempty"`
	RenewalFails string     `json:"renewalFails,omitempty"`
	OverQuota    string     `json:"overQuota,omitempty"` // why the hub takes nothing of what the node reports
	OtherHub     string     `json:"otherHub,omitempty"`  // that gave the node what it has, and not this one
	Rejected     *Rejection `json:"rejected,omitempty"`
	Anomaly      *Anomaly   `json:"anomaly,omitempty"`
}

// Anomaly is the last time that a node's state was replaced by one that can't have followed from it.
type Anomaly struct {
	Time    string `json:"time"`
	Reason  string `json:"reason"` // RolledBack, LineageLeap
	Message string `json:"message"`
}

// Reasons of an Anomaly, and of the Event that tells of it.
const (
	RolledBack  = "RolledBack"
	LineageLeap = "LineageLeap"
)

// Behind is how far a copy is behind its owner.
type Behind struct {
	Keys    int     `json:"keys"`
	Seconds float64 `json:"seconds"` // the age of the oldest of them
}

// Rejection is the last connection in a node's name that was not let in.
type Rejection struct {
	Count  int    `json:"count"`
	Time   string `json:"time"`
	Reason string `json:"reason"`
	Remote string `json:"remote,omitempty"`
}

// SessionList is the answer of /sessions, on the hub and on a core.
type SessionList struct {
	Sessions []Session `json:"sessions"`
}

// Session is the session of an MQTT client with one of the brokers.
type Session struct {
	Client    string `json:"client"`         // its identifier
	User      string `json:"user,omitempty"` // whose it is; empty: somebody without a name
	Connected bool   `json:"connected"`
	Remote    string `json:"remote,omitempty"` // where the client connects from, or did last
	// Since when the client is away, and when its session ends if it stays so.
	Since         string `json:"since,omitempty"`
	Expires       string `json:"expires,omitempty"`
	Subscriptions int    `json:"subscriptions"`
	Messages      int    `json:"messages"` // that wait, or were sent and are not acknowledged
	Bytes         int    `json:"bytes"`    // of those that wait
}

// HubID identifies a hub's data: it is a random number that is made with a new store, and part of its backups.
type HubID uint32

const hubPrefix = "hub-" // digits alone would be a number to YAML

// String is the form that people see and write.
func (id HubID) String() string { return fmt.Sprintf("%s%08x", hubPrefix, uint32(id)) }

// Text is the same, and empty for none.
func (id HubID) Text() string {
	if id == 0 {
		return ""
	}
	return id.String()
}

// ParseHubID reads what String wrote.
func ParseHubID(text string) (HubID, error) {
	digits, ok := strings.CutPrefix(text, hubPrefix)
	n, err := strconv.ParseUint(digits, 16, 32)
	if id := HubID(n); ok && err == nil && id.String() == text {
		return id, nil
	}
	return 0, fmt.Errorf("%q is no hub's identity, such as %s", text, HubID(0x5f3c2a11))
}
