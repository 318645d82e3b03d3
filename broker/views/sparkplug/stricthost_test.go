// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// strictHost is a host application that believes nothing: it holds each message of an edge node against the assertions of the specification
// that concern it (docs/sparkplug.md), and keeps what it was told, to be held against the tree.
type strictHost struct {
	t           require.TestingT
	group, node string
	aliases     bool

	session  string
	first    bool // nothing was published in this connection
	born     bool
	dead     bool // it has said so itself: nothing may follow
	data     bool // there was data since the last birth of the edge node
	seq      int
	now      uint64
	known    map[string]map[string]*hostMetric // by device and name
	numbers  map[uint64]string                 // aliases, with whose they are
	past     []hostMetric
	messages int
}

type hostMetric struct {
	name, text string
	null       bool
	typ        sparkplug.DataType
	alias      uint64
	at         uint64
	quality    int32
}

// must holds for all assertions with the given names, without tck-id-.
func (h *strictHost) must(holds bool, what string, ids ...string) {
	if !holds {
		require.Fail(h.t, what, "%s", strings.Join(ids, ", "))
	}
}

func (h *strictHost) topic(kind, device string) string {
	topic := "spBv1.0/" + h.group + "/" + kind + "/" + h.node
	if device != "" {
		topic += "/" + device
	}
	return topic
}

// connect takes what a connection begins with.
func (h *strictHost) connect(c views.Connection) {
	h.first, h.born, h.dead, h.data, h.seq, h.messages = true, false, false, false, -1, 0
	h.known, h.numbers, h.past = map[string]map[string]*hostMetric{}, map[uint64]string{}, nil
	h.must(c.Will != nil, "a connection without a will", "message-flow-edge-node-birth-publish-will-message", "payloads-ndeath-will-message")
	h.must(c.Will.Topic == h.topic("NDEATH", ""), c.Will.Topic, "topics-ndeath-topic", "message-flow-edge-node-birth-publish-will-message-topic",
		"topic-structure", "topic-structure-namespace-a")
	h.must(c.Will.QoS == 1, "the will's quality of service", "message-flow-edge-node-birth-publish-will-message-qos", "payloads-ndeath-will-message-qos")
	h.must(!c.Will.Retain, "the will is retained", "message-flow-edge-node-birth-publish-will-message-will-retained", "payloads-ndeath-will-message-retain")
	h.session = h.death(c.Will.Payload)
	filters := strings.Join(c.Filters, " ")
	h.must(strings.Contains(filters, h.topic("NCMD", "")), filters, "message-flow-edge-node-ncmd-subscribe", "topics-ncmd-topic")
	h.must(strings.Contains(filters, h.topic("DCMD", "+")), filters, "message-flow-device-dcmd-subscribe", "topics-dcmd-topic")
}

// death reads a death certificate, and returns its session number.
func (h *strictHost) death(payload []byte) string {
	p, err := sparkplug.Parse(payload)
	h.must(err == nil, "a death that is no payload", "message-flow-edge-node-birth-publish-will-message-payload")
	h.must(p.Seq < 0, "a death with a number in the sequence", "payloads-ndeath-seq", "topics-ndeath-seq")
	h.must(len(p.Metrics) == 1 && p.Metrics[0].Name == "bdSeq", "a death with other metrics than bdSeq", "topics-ndeath-payload", "payloads-ndeath-bdseq")
	h.must(p.Metrics[0].Type == sparkplug.TypeInt64, "bdSeq is no Int64", "message-flow-edge-node-birth-publish-will-message-payload-bdSeq")
	text, err := p.Metrics[0].Text(sparkplug.TypeUnspecified)
	h.must(err == nil, "bdSeq without a value", "message-flow-edge-node-birth-publish-will-message-payload-bdSeq")
	return text
}

// take takes a message of the edge node.
func (h *strictHost) take(m views.Message) {
	h.messages++
	parts := strings.Split(m.Topic, "/")
	h.must(len(parts) >= 4 && len(parts) <= 5 && parts[0] == "spBv1.0", m.Topic, "topic-structure", "topic-structure-namespace-a")
	h.must(parts[1] == h.group && parts[3] == h.node, m.Topic, "topics-nbirth-topic", "topics-dbirth-topic", "topics-ddata-topic", "topics-ddeath-topic",
		"message-flow-edge-node-birth-publish-nbirth-topic", "message-flow-device-birth-publish-dbirth-topic",
		"message-flow-device-birth-publish-dbirth-match-edge-node-topic", "topic-structure-namespace-valid-group-id",
		"topic-structure-namespace-valid-edge-node-id")
	kind, device := parts[2], ""
	if len(parts) == 5 {
		device = parts[4]
	}
	h.must(!h.dead, "a message after the death", "operational-behavior-edge-node-intentional-disconnect-ndeath")
	h.must(!h.first || kind == "NBIRTH" || kind == "NDEATH", "the first message is "+kind, "principles-birth-certificates-order",
		"message-flow-device-birth-publish-nbirth-wait", "message-flow-edge-node-birth-publish-connect")
	h.first = false
	if kind == "NDEATH" {
		h.must(device == "", m.Topic, "topic-structure-namespace-device-id-non-associated-message-types")
		h.must(h.death(m.Payload) == h.session, "a death of another session", "payloads-ndeath-bdseq")
		h.dead, h.born, h.known = true, false, map[string]map[string]*hostMetric{}
		return
	}
	h.must(m.QoS == 0, kind+" with another quality of service than 0", "topics-nbirth-mqtt", "topics-dbirth-mqtt", "topics-ddata-mqtt", "topics-ddeath-mqtt",
		"payloads-nbirth-qos", "payloads-dbirth-qos", "payloads-ddata-qos", "message-flow-edge-node-birth-publish-nbirth-qos",
		"message-flow-device-birth-publish-dbirth-qos")
	h.must(!m.Retain, kind+" is retained", "topics-nbirth-mqtt", "topics-dbirth-mqtt", "topics-ddata-mqtt", "topics-ddeath-mqtt", "payloads-nbirth-retain",
		"payloads-dbirth-retain", "payloads-ddata-retain", "message-flow-edge-node-birth-publish-nbirth-retained",
		"message-flow-device-birth-publish-dbirth-retained")
	p, err := sparkplug.Parse(m.Payload)
	h.must(err == nil, kind+" is no payload", "message-flow-edge-node-birth-publish-nbirth-payload", "message-flow-device-birth-publish-dbirth-payload")
	h.must(p.Timestamp == h.now, kind+" of another time than when it was sent", "topics-nbirth-timestamp", "topics-dbirth-timestamp",
		"topics-ddata-timestamp", "payloads-nbirth-timestamp", "payloads-dbirth-timestamp", "payloads-ddata-timestamp", "payloads-ddeath-timestamp",
		"payloads-timestamp-in-UTC")
	h.number(kind, p.Seq)
	switch kind {
	case "NBIRTH":
		h.must(device == "", m.Topic, "topic-structure-namespace-device-id-non-associated-message-types")
		h.bear(p)
	case "DBIRTH", "DDATA", "DDEATH":
		h.must(device != "", m.Topic, "topic-structure-namespace-device-id-associated-message-types")
		h.takeDevice(kind, device, p)
	default:
		h.must(false, "a message of the unknown kind "+kind, "topic-structure")
	}
}

// number takes a message's number in the sequence.
func (h *strictHost) number(kind string, seq int) {
	h.must(seq >= 0 && seq <= 255, kind+" without a number", "payloads-sequence-num-always-included", "payloads-sequence-num-req-nbirth", "payloads-nbirth-seq",
		"payloads-dbirth-seq", "payloads-ddata-seq", "payloads-ddeath-seq", "payloads-ddeath-seq-number", "message-flow-edge-node-birth-publish-nbirth-payload-seq")
	if kind == "NBIRTH" {
		h.must(seq == 0, "a birth whose number isn't 0", "topics-nbirth-seq-num")
	} else {
		h.must(seq == (h.seq+1)%256, kind+" is out of the sequence", "payloads-sequence-num-incrementing", "payloads-dbirth-seq-inc", "payloads-ddata-seq-inc",
			"payloads-ddeath-seq-inc", "topics-dbirth-seq", "topics-ddata-seq-num", "topics-ddeath-seq-num",
			"message-flow-device-birth-publish-dbirth-payload-seq")
	}
	h.seq = seq
}

// bear takes the birth of the edge node.
func (h *strictHost) bear(p sparkplug.Payload) {
	h.born, h.data = true, false
	h.known, h.numbers = map[string]map[string]*hostMetric{}, map[uint64]string{}
	metrics := h.births("", p)
	session, rebirth := metrics["bdSeq"], metrics["Node Control/Rebirth"]
	h.must(session != nil && session.text == h.session && session.typ == sparkplug.TypeInt64, "the birth has another session number than the will",
		"topics-nbirth-bdseq-included", "topics-nbirth-bdseq-matching", "payloads-nbirth-bdseq", "payloads-nbirth-bdseq-repeat",
		"message-flow-edge-node-birth-publish-nbirth-payload-bdSeq", "operational-behavior-data-commands-rebirth-action-3")
	h.must(rebirth != nil && rebirth.text == "false" && rebirth.typ == sparkplug.TypeBoolean && rebirth.alias == 0, "no Node Control/Rebirth",
		"topics-nbirth-rebirth-metric", "payloads-nbirth-rebirth-req", "operational-behavior-data-commands-rebirth-name",
		"operational-behavior-data-commands-rebirth-datatype", "operational-behavior-data-commands-rebirth-value",
		"operational-behavior-data-commands-rebirth-name-aliases")
}

// births reads the metrics of a birth.
func (h *strictHost) births(device string, p sparkplug.Payload) map[string]*hostMetric {
	metrics, last := map[string]*hostMetric{}, uint64(0)
	for _, m := range p.Metrics {
		h.must(m.Name != "" && metrics[m.Name] == nil, "a metric without a name of its own", "topics-nbirth-metrics", "topics-dbirth-metrics",
			"payloads-name-requirement")
		h.must(m.Type > sparkplug.TypeUnspecified && m.Type <= sparkplug.TypeTemplate, m.Name+" without a type", "topics-nbirth-metrics",
			"topics-dbirth-metrics", "payloads-metric-datatype-req", "payloads-metric-datatype-value", "payloads-metric-datatype-value-type")
		h.must(m.Timestamp >= last && m.Timestamp > 0, m.Name+" is out of the order of time", "payloads-name-birth-data-requirement", "payloads-metric-timestamp-in-UTC",
			"operational-behavior-data-publish-nbirth-order", "operational-behavior-data-publish-dbirth-order")
		last = m.Timestamp
		text, err := m.Text(sparkplug.TypeUnspecified)
		h.must(m.Null == (err != nil), m.Name+" has neither a value nor is null, or both", "operational-behavior-data-publish-nbirth-values",
			"operational-behavior-data-publish-dbirth-values")
		if h.aliases && device != "" {
			h.must(m.HasAlias && h.numbers[m.Alias] == "", m.Name+" without an alias of its own", "payloads-alias-uniqueness", "payloads-alias-birth-requirement")
			h.numbers[m.Alias] = device + "/" + m.Name
		}
		h.must(h.aliases || !m.HasAlias, m.Name+" has an alias", "payloads-name-requirement")
		metrics[m.Name] = &hostMetric{m.Name, text, m.Null, m.Type, m.Alias, m.Timestamp, h.quality(m, true)}
	}
	h.known[device] = metrics
	return metrics
}

// quality reads a metric's properties.
func (h *strictHost) quality(m sparkplug.Metric, birth bool) int32 {
	list, err := m.Properties()
	h.must(err == nil, m.Name+": properties without values, or the reverse", "payloads-propertyset-keys-array-size", "payloads-propertyset-values-array-size")
	for _, p := range list {
		h.must(!birth || p.Type != sparkplug.TypeUnspecified, p.Key+" without a type", "payloads-metric-propertyvalue-type-req",
			"payloads-metric-propertyvalue-type-type", "payloads-metric-propertyvalue-type-value")
		if p.Key == sparkplug.KeyQuality {
			h.must(p.Type == sparkplug.TypeInt32, "the type of Quality", "payloads-propertyset-quality-value-type")
		}
	}
	q := m.Quality()
	h.must(q == 0 || q == 192 || q == 500, "the quality", "payloads-propertyset-quality-value-value")
	return q
}

func (h *strictHost) takeDevice(kind, device string, p sparkplug.Payload) {
	h.must(h.born, kind+" before the edge node's birth", "message-flow-device-birth-publish-nbirth-wait", "payloads-dbirth-order", "payloads-ddata-order")
	switch kind {
	case "DBIRTH":
		for number, of := range h.numbers { // a device that is born again keeps its numbers
			if strings.HasPrefix(of, device+"/") {
				delete(h.numbers, number)
			}
		}
		h.births(device, p)
	case "DDEATH":
		h.must(h.known[device] != nil, "the death of a device that wasn't born", "operational-behavior-device-ddeath")
		delete(h.known, device)
	default:
		h.must(h.known[device] != nil, "data of a device that wasn't born", "payloads-ddata-order")
		h.data = true
		h.takeData(device, p)
	}
}

func (h *strictHost) takeData(device string, p sparkplug.Payload) {
	h.must(len(p.Metrics) > 0, "data without metrics", "topics-ddata-payload")
	last := uint64(0)
	for _, m := range p.Metrics {
		name := m.Name
		if h.aliases {
			h.must(m.HasAlias && m.Name == "", "data with names", "payloads-alias-data-cmd-requirement")
			name = strings.TrimPrefix(h.numbers[m.Alias], device+"/")
		}
		known := h.known[device][name]
		h.must(known != nil, name+" was not in the birth", "topics-dbirth-metric-reqs", "operational-behavior-data-publish-dbirth")
		h.must(m.Type == sparkplug.TypeUnspecified, name+" with its type", "payloads-metric-datatype-not-req")
		h.must(m.Timestamp > 0, name+" without a time", "payloads-name-birth-data-requirement")
		text, err := m.Text(known.typ)
		h.must(m.Null == (err != nil), name+" has neither a value nor is null", "operational-behavior-data-publish-dbirth-values")
		now := hostMetric{name, text, m.Null, known.typ, known.alias, m.Timestamp, h.quality(m, false)}
		list, _ := m.Properties() // read before
		h.must(m.Historical || len(list) > 0 || known.quality == sparkplug.QualityGood, name+" doesn't say that it is good again", "payloads-propertyset-quality-value-value")
		if m.Historical {
			h.past = append(h.past, now)
			continue
		}
		h.must(m.Timestamp >= last, name+" is out of the order of time", "operational-behavior-data-publish-dbirth-order")
		last = m.Timestamp
		h.must(now.text != known.text || now.null != known.null || now.quality != known.quality, name+" hasn't changed", "principles-rbe-recommended",
			"operational-behavior-data-publish-dbirth-change", "topics-ddata-payload")
		*known = now
	}
}
