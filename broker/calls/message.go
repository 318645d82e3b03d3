package calls

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
)

// call is one command and whoever asked. It doesn't change once it is in the table.
type call struct {
	id           string // unguessable: knowing it is having been asked
	node, device string
	topic        string
	from, user   string   // the client that asked, and its user; empty: the other end of the link
	key          uint64   // the same when the client sends the publish again; 0: it can't
	asked        []string // the clients that were asked
	reply        func(broker.Message)

	// what its answer is to have
	response    string
	correlation []byte
	qos         byte
}

// maxCorrelation bounds what a call keeps of its publish.
const maxCorrelation = 4096

// newCall copies what it keeps, or each call under way would keep a whole packet.
func (c *Calls) newCall(a topics.Address, m broker.Message, reply func(broker.Message)) *call {
	x := &call{
		node: strings.Clone(a.Node), device: strings.Clone(a.Device), topic: strings.Clone(m.Topic),
		from: m.Publisher.ClientID, user: m.Publisher.User, reply: reply, response: strings.Clone(m.Props.ResponseTopic), qos: m.QoS,
		correlation: bytes.Clone(m.Props.Correlation),
	}
	if m.QoS > 0 {
		x.key = maphash.Comparable(c.seed, [3]string{x.from, x.topic, string(m.Props.Correlation)})
	}
	return x
}

// mayConcern saves most topics from being parsed.
func mayConcern(topic string) bool {
	path := topic[:max(0, strings.LastIndexByte(topic, '/'))]
	return strings.HasSuffix(path, "/commands") || strings.HasSuffix(path, "/answers") || strings.HasSuffix(topic, "/sync/clock")
}

// namesCommands says whether a filter that matches a command's topic,
// v1/nodes/{node}/devices/{device}/commands/{name}, says so.
func namesCommands(filter string) bool {
	levels := strings.SplitN(filter, "/", 7)
	return len(levels) > 5 && levels[5] == "commands"
}

// wait is how long a call with that message expiry waits for its answer.
func waitOf(l Limits, expiry uint32) time.Duration {
	if expiry == 0 {
		return l.Timeout
	}
	return min(time.Duration(expiry)*time.Second, l.Longest)
}

// forwarded is the command for whoever executes it.
func (x *call) forwarded(m broker.Message, wait time.Duration) broker.Message {
	m.QoS, m.Retain, m.Again = 0, false, false
	m.Props.ResponseTopic = topics.Address{Node: x.node, Kind: topics.KindAnswer, Device: x.device, Name: x.id}.String()
	m.Props.Correlation = nil
	m.Props.Expiry = uint32((wait + time.Second - 1) / time.Second)
	return m
}

// answered is the executor's answer for the asker, and its code: the executor's own,
// or what follows from there being an error.
func (x *call) answered(m broker.Message) (broker.Message, topics.Code) {
	var code topics.Code
	failed := false
	var rest []broker.UserProperty
	for _, p := range m.Props.User {
		if p.Key == topics.PropCode {
			code = cmp.Or(code, topics.Code(p.Value))
			continue
		}
		failed = failed || p.Key == topics.PropError
		rest = append(rest, p)
	}
	if code == "" && failed {
		code = topics.Failed
	}
	code = cmp.Or(code, topics.OK)
	r := x.result(m.Payload)
	r.Props.ContentType, r.Props.PayloadFormat = m.Props.ContentType, m.Props.PayloadFormat
	r.Props.User = slices.Concat([]broker.UserProperty{{Key: topics.PropCode, Value: string(code)}}, rest)
	return r, code
}

// ended is the answer in the executor's place.
func (x *call) ended(e *ending) broker.Message {
	r := x.result(nil)
	r.Props.User = []broker.UserProperty{{Key: topics.PropCode, Value: string(e.code)}, {Key: topics.PropError, Value: e.err.Error()}}
	return r
}

func (x *call) result(payload []byte) broker.Message {
	return broker.Message{
		Topic: x.response, Payload: payload, QoS: x.qos, Props: broker.Properties{Correlation: x.correlation},
	}
}

// size is what a message brings along, without what MQTT and the bus put around it.
func size(m broker.Message) int {
	n := len(m.Payload) + len(m.Props.ContentType)
	for _, p := range m.Props.User {
		n += len(p.Key) + len(p.Value)
	}
	return n
}
