package tree

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics"
)

// EachChange calls f with each change until ctx ends or one is an error.
func EachChange(ctx context.Context, changes <-chan Change, f func(Change) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			if c.Err != nil {
				return c.Err
			}
			if err := f(c); err != nil {
				return err
			}
		}
	}
}

// Change is a topic's new value, or, without a key, something about the connection or the demo's programs.
type Change struct {
	Key string `json:"key"`
	TopicValue
	Up   bool   // connected: all topics follow
	down string // why there is no connection
	Note string
	Err  error
}

// TopicValue is a topic's value; that of a cleared topic is empty.
type TopicValue struct {
	Value      string    `json:"value"`
	Ver        uint64    `json:"ver,omitempty"`
	TS         time.Time `json:"ts,omitzero"`
	Origin     string    `json:"origin,omitempty"`
	receivedAt time.Time
}

// changeOfMessage reads a message of the tree's state. Streams, commands and the link's own topics are not part of it.
func changeOfMessage(m client.Message, now time.Time) (Change, bool) {
	address, err := topics.Parse(m.Topic)
	if err != nil || !isStateTopic(address.Kind) {
		return Change{}, false
	}
	c := Change{Key: address.Key(), TopicValue: TopicValue{Value: string(m.Payload), Origin: m.Property("origin"), receivedAt: now}}
	c.Ver, _ = strconv.ParseUint(m.Property("ver"), 10, 64)
	c.TS, _ = time.Parse(time.RFC3339, m.Property("ts"))
	return c, true
}

func isStateTopic(kind topics.Kind) bool {
	for _, t := range topics.Table() {
		if t.Kind == kind {
			return t.Retain
		}
	}
	return false
}

func (c Change) String() string {
	switch {
	case c.Up:
		return "— connected"
	case c.down != "":
		return "— " + terminal.Printable(c.down, 200)
	case c.Note != "":
		return "— " + terminal.Printable(c.Note, 200)
	}
	text := c.Key + " = " + terminal.Printable(c.Value, 120)
	if c.Value == "" {
		text = c.Key + " is cleared"
	}
	if c.Ver > 0 {
		text += fmt.Sprintf("  (ver %d)", c.Ver)
	}
	return text
}
