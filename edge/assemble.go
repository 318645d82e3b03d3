// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"crypto/rand"
	"slices"
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// assembler puts messages together that come in parts over one of the link's connections: at most one at a time, which outlives the
// connection.
type assembler struct {
	topic   string
	memory  atomic.Pointer[string] // tells the hub whether what it has sent is still here
	message link.IncomingParts
}

// assembleParts makes the options' client take large messages in parts. take gets each message whole, and returns false if the connection has ended
// before the message could be stored: then the hub has to send all of it again.
func assembleParts(o client.Options, node string, take func(client.Message) (taken bool), reconnect func(error)) client.Options {
	a := &assembler{topic: topics.Address{Node: node, Kind: topics.KindParts}.String()}
	a.forget()
	o.Properties = func() []client.UserProperty {
		return []client.UserProperty{{Key: link.PropParts, Value: *a.memory.Load()}}
	}
	o.OnMessage = func(m client.Message) {
		inParts := m.Topic == a.topic
		if inParts {
			whole, err := a.add(&m)
			if err != nil { // the hub begins anew
				a.forget()
				reconnect(err)
			}
			if !whole {
				return
			}
		}
		if !take(m) && inParts {
			a.forget()
		}
	}
	return o
}

func (a *assembler) forget() {
	memory := rand.Text()
	a.memory.Store(&memory)
	a.message = link.IncomingParts{}
}

// add adds a part. With the last one m becomes the message.
func (a *assembler) add(m *client.Message) (whole bool, err error) {
	p, err := link.DecodeMessagePart(m.Payload)
	if err != nil {
		return false, err
	}
	if p.Offset == 0 && a.message.ID != string(p.ID) {
		a.message = link.NewIncomingParts(&p)
	}
	fresh, err := a.message.NewContent(&p)
	if err != nil || fresh == nil {
		return false, err
	}
	if !p.Last() {
		a.message.Content = append(a.message.Content, fresh...)
		return false, nil
	}
	m.Topic, m.Payload = p.Topic, slices.Concat(a.message.Content, fresh)
	a.message.Content, a.message.Whole = nil, true
	return true, nil
}
