// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"strconv"
	"strings"
)

// LinkReport is the state of one end of the link, made on request: of the hub for the nodes that it knows, or of a core for
// its own. It is never stored, and is no object of the API.
type LinkReport struct {
	Program string `json:"program"` // cloudhub, edgecore
	Version string `json:"version,omitempty"`
	Now     string `json:"now"` // the time by this end's clock
	// Hub is the hub's identity. In a core's report it is that of the hub that the core is connected to.
	Hub string `json:"hub,omitempty"`
	// FailingStores has the error of the last commit for each store whose last commit failed.
	FailingStores map[string]string `json:"failingStores,omitempty"`
	// MissingData is an error if a part of the data directory was removed, moved or replaced while the program was using it.
	MissingData string `json:"missingData,omitempty"`
	// DescriptorShortage is an explanation if connections were refused in the last minute for lack of file descriptors.
	DescriptorShortage string `json:"descriptorShortage,omitempty"`
	// DamagedStores has an error for each store that found damage in its files. Such a store goes on, but can't be opened again.
	DamagedStores map[string]string `json:"damagedStores,omitempty"`
	// LowSpace is how little of the disk with the data directory is free, if it is nearly full.
	LowSpace string `json:"lowSpace,omitempty"`
	// ForeignOrigin is the last web page that was refused at MQTT over WebSocket; nil: none was since this end's start.
	ForeignOrigin *ForeignOrigin `json:"foreignOrigin,omitempty"`
	// Rules is why the present file of rules for users' own topics is not in force.
	Rules string `json:"rules,omitempty"`
	// FailingViews is what is wrong with views, by their names (docs/views.md).
	FailingViews map[string]string `json:"failingViews,omitempty"`
	// LateCopies is how the copies of the hub's log are behind that are, or are gone, by the users who follow it.
	LateCopies map[string]string `json:"lateCopies,omitempty"`
	// FullestQueue is the fill level of the fullest queue of this end's broker, from 0 to 1.
	FullestQueue float64 `json:"fullestQueue,omitempty"`
	// FullestQueueClient is the client that the fullest queue belongs to. Missed is how many messages were dropped because a session
	// was full: since this end's start, and before it by sessions that there still are.
	FullestQueueClient string `json:"fullestQueueClient,omitempty"`
	Missed             int64  `json:"missed,omitempty"`
	// Refused is how many publishes this end's broker refused since its start, by kind of error.
	Refused map[string]int64 `json:"refused,omitempty"`
	// Streams is the state of a core's queue of streams; nil in the hub's report.
	Streams *StreamReport `json:"streams,omitempty"`
	// Owned is how much a core's node owns, and its limits; nil in the hub's report.
	Owned *Usage `json:"owned,omitempty"`
	// Links are the node's links, the worst first. More is how many links were left out.
	Links []Link `json:"links"`
	More  int    `json:"more,omitempty"`
}

// ForeignOrigin is a web page that was refused because mqtt.websocket.origins doesn't list its origin.
type ForeignOrigin struct {
	Origin   string `json:"origin"`
	Listener string `json:"listener"`
	Time     string `json:"time"`
}

// StreamReport is the state of a core's queue of telemetry, events and bridged messages.
type StreamReport struct {
	Waiting      int              `json:"waiting"`
	Seconds      float64          `json:"seconds"`           // the age of the oldest message
	Dropped      map[string]int64 `json:"dropped,omitempty"` // messages since the core's start, by reason; those of a full queue since that began
	RefusedRules int              `json:"refusedRules"`      // bridge rules that the hub doesn't permit
}

// Usage is how much a node owns, and its limits. A limit of 0 means no limit.
type Usage struct {
	Keys     int `json:"keys"`
	MaxKeys  int `json:"maxKeys"`
	Bytes    int `json:"bytes"`
	MaxBytes int `json:"maxBytes"`
}

// LinkAlone is the state of the link of a core whose settings name no hub.
const LinkAlone = "alone"

// Link is a node's link as one end sees it. Numbers are counted from that end's start.
type Link struct {
	Node     string `json:"node"`
	State    string `json:"state"`              // online, offline, unknown, alone
	Since    string `json:"since,omitempty"`    // when the state began; empty: before this end's start
	LastSeen string `json:"lastSeen,omitempty"` // when the other end last sent anything
	// KeepAlive is the keep-alive of the node's connection in seconds: a node that is well sends something at least as often. 0: it is
	// not known to this end.
	KeepAlive float64 `json:"keepAlive,omitempty"`
	// InStep says that the other end has confirmed, in this connection, that it has the whole map that this end owns.
	InStep bool `json:"inStep"`
	// Behind is what the other end lacks of that map; nil if it can't be known.
	Behind      *LinkLag `json:"behind,omitempty"`
	Peer        string   `json:"peer,omitempty"`    // the other end's address
	Version     string   `json:"version,omitempty"` // of the node's core
	Connections int      `json:"connections"`
	Failures    int      `json:"failures,omitempty"`  // failed attempts to connect
	Takeovers   int      `json:"takeovers,omitempty"` // connections that ended because another one had the same name
	LastError   string   `json:"lastError,omitempty"` // why there is no connection, or why the last one ended
	// ClockAhead is how far the node's clock is ahead of the hub's, in seconds; nil if unknown.
	ClockAhead *float64 `json:"clockAhead,omitempty"`
	// CertificateExpires is the expiry time of this end's or the other end's certificate, whichever is earlier.
	CertificateExpires string `json:"certificateExpires,omitempty"`
	// SpecFailed is the version of the spec that the node's agent could not apply, and the reason; empty if none.
	SpecFailed string `json:"specFailed,omitempty"`
	// StoppedPrograms are the programs of the node that have ended: edgeagent, edgediscovery.
	StoppedPrograms []string `json:"stoppedPrograms,omitempty"`
	// RenewalError is why the node's certificate could not be renewed, and RenewalFailingSince since when. They are set for cores that
	// renew their certificates.
	RenewalError        string     `json:"renewalError,omitempty"`
	RenewalFailingSince string     `json:"renewalFailingSince,omitempty"`
	OverQuota           string     `json:"overQuota,omitempty"` // the limit exceeded, for which the hub stores no reports of the node
	OtherHub            string     `json:"otherHub,omitempty"`  // the hub that the node's data is from, if not this one
	Rejected            *Rejection `json:"rejected,omitempty"`
	Anomaly             *Anomaly   `json:"anomaly,omitempty"`
}

// Anomaly is the last time that a node's state was replaced by one that can't have followed from it.
type Anomaly struct {
	Time    string `json:"time"`
	Reason  string `json:"reason"` // RolledBack, LineageLeap
	Message string `json:"message"`
}

// The reasons of an Anomaly, and of the Event that reports it.
const (
	RolledBack  = "RolledBack"
	LineageLeap = "LineageLeap"
)

// LinkLag is how far a copy lags behind its owner.
type LinkLag struct {
	Keys    int     `json:"keys"`
	Seconds float64 `json:"seconds"` // the age of the oldest key
}

// Rejection is the last connection in a node's name that was refused.
type Rejection struct {
	Count  int    `json:"count"`
	Time   string `json:"time"`
	Reason string `json:"reason"`
	Remote string `json:"remote,omitempty"`
}

// SessionList is the answer to a request of /sessions, on the hub and on a core.
type SessionList struct {
	Sessions []Session `json:"sessions"`
}

// Session is the state of an MQTT client's session with one of the brokers.
type Session struct {
	Client    string `json:"client"`         // the client identifier
	User      string `json:"user,omitempty"` // the user; empty: an anonymous one
	Connected bool   `json:"connected"`
	Remote    string `json:"remote,omitempty"` // the client's address, or its last one
	// Since is the time when the client disconnected, and Expires the time when its session ends if it does not connect again.
	Since         string `json:"since,omitempty"`
	Expires       string `json:"expires,omitempty"`
	Subscriptions int    `json:"subscriptions"`
	Messages      int    `json:"messages"` // that wait, or were sent and not acknowledged
	Bytes         int    `json:"bytes"`    // of the messages that wait
	// Missed is how many messages the session had no room for since it began. It counts over restarts, if the session outlives them.
	Missed int64 `json:"missed,omitempty"`
}

// HubID identifies a hub's data. It is a random number, drawn when a store is created, and part of the store's backups.
type HubID uint32

const hubPrefix = "hub-" // without it YAML would take some identities for numbers

// String is the form that people read and write, such as hub-5f3c2a11.
func (id HubID) String() string { return fmt.Sprintf("%s%08x", hubPrefix, uint32(id)) }

// Text is the same as String, but empty for 0.
func (id HubID) Text() string {
	if id == 0 {
		return ""
	}
	return id.String()
}

// ParseHubID reads what String returns.
func ParseHubID(text string) (HubID, error) {
	digits, ok := strings.CutPrefix(text, hubPrefix)
	n, err := strconv.ParseUint(digits, 16, 32)
	if id := HubID(n); ok && err == nil && id.String() == text {
		return id, nil
	}
	return 0, fmt.Errorf("%q is no hub's identity, such as %s", text, HubID(0x5f3c2a11))
}
