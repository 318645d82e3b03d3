// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"strings"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// downMap is the replica of the map that the cloud owns.
type downMap struct{ *link.Replica }

// documents follows what the cloud owns: devices, what is desired of them, and documents that are only passed on.
type documents struct {
	opts      *Options
	down      *downMap
	devices   *devices
	overrides *overrides
	programs  *programs
}

// follow notes a change that the cloud made. Its effects are derived at the end of the batch, when all changes are known.
func (docs *documents) follow(b *batch, c link.Entry) {
	a, err := topics.ParseKey(docs.opts.Node, c.Key)
	if err != nil {
		return // a key of a newer hub: it is stored and ignored
	}
	switch a.Kind {
	case topics.KindDesired:
		b.mark(c.Key)
		b.touch(a.Device, a.Name)
	case topics.KindDevice, topics.KindDevicePart:
		b.mark(c.Key)
		b.changedDocuments["devices/"+a.Device] = true
	default:
		key, _, _ := strings.Cut(c.Key, "/parts/")
		b.changedDocuments[key] = true
	}
}

// derive derives the effects of the batch's changes: devices that were added, changed or removed, and the values in force. A step
// that needs them may call it before the end of the batch.
func (docs *documents) derive(b *batch) {
	for key := range b.changedDocuments {
		delete(b.changedDocuments, key)
		if name, ok := strings.CutPrefix(key, "devices/"); ok {
			docs.devices.derive(b, name)
		} else {
			docs.deriveDocument(b, key)
		}
	}
	for dp := range b.touched {
		delete(b.touched, dp)
		docs.overrides.derive(b, docs.devices.byName[dp[0]], dp[0], dp[1])
	}
}

// document is a cloud-owned document, joined from its parts; ok is false while parts are missing.
func (m *downMap) document(key string) (doc []byte, exists, ok bool) {
	e, exists := m.Get(key)
	if !exists {
		return nil, false, true
	}
	doc, ok = topics.JoinDocument(e.Value, func(n int) ([]byte, bool) {
		p, ok := m.Get(topics.PartKey(key, n))
		return p.Value, ok
	})
	return doc, true, ok
}

func (docs *documents) deriveDocument(b *batch, key string) {
	doc, exists, ok := docs.down.document(key)
	if name, of := strings.CutPrefix(key, "discovery/"); of && !exists {
		docs.programs.forgetDiscovered(b, name)
	}
	if ok {
		b.publishes = append(b.publishes, docs.opts.retained(key, doc))
	}
}
