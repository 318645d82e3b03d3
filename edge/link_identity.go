// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"crypto/x509"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/enroll"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// hubIdentity is the part of the link that renews the certificate by which the hub knows the node, and gives it up when the hub has decommissioned the node.
type hubIdentity struct {
	cfg     configs.Core
	renewer *enroll.Renewer // nil: the core has no certificate that it got by joining
	end     func()          // ends the link
	log     zerolog.Logger
}

// decommissionNote says why the node has no identity any more; empty: it has one.
func (h *hubIdentity) decommissionNote() (why string, err error) {
	why, err = enroll.DecommissionNote(h.cfg.Data.Dir)
	if err != nil || why != "" {
		h.log.Error().Err(err).Str("noted", why).Msg("the hub has decommissioned this node: it works alone until it joins again (edgecore join)")
	}
	return why, err
}

// addRenewal has the certificate renewed over the main client, if it is one that the core got by joining. noted gets why it was not; renewed has the link connect anew.
func (h *hubIdentity) addRenewal(o *client.Options, main **client.Client, noted func(err error, since time.Time), renewed func(context.Context)) {
	if !enroll.OwnsCertificate(h.cfg.Data.Dir, h.cfg.Link.TLS.Cert) {
		return
	}
	h.renewer = enroll.NewRenewer(enroll.RenewOptions{
		Identity: enroll.Identity{Dir: filepath.Dir(h.cfg.Link.TLS.Cert)}, Node: h.cfg.Node.Name, Log: h.log, Noted: noted, Renewed: renewed,
		Publish: func(topic string, payload []byte, done func(error)) {
			(*main).PublishAsync(client.Message{Topic: topic, Payload: payload, QoS: 1}, done)
		},
	})
	o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: h.renewer.Filter(), QoS: 1})
}

// connected, and take, which says whether a message was for it, do nothing without a renewer.
func (h *hubIdentity) connected() {
	if h.renewer != nil {
		h.renewer.Connected()
	}
}

func (h *hubIdentity) take(m client.Message) bool {
	a, err := topics.Parse(m.Topic)
	if err != nil || a.Kind != topics.KindEnrolled || h.renewer == nil {
		return false
	}
	h.renewer.Take(a, m.Payload)
	return true
}

// checkDecommission moves the node's keys aside when the hub refuses its certificate with the authority's signed notice that the node was
// decommissioned. Nothing else ends an identity: not the text of an error, and nobody on the path.
func (h *hubIdentity) checkDecommission(err error, own *x509.Certificate) {
	refused := client.ConnectRefused(err)
	if refused == nil {
		return
	}
	i := slices.IndexFunc(refused.User, func(p client.UserProperty) bool { return p.Key == resource.DecommissionProperty })
	if i < 0 {
		return
	}
	why, err := enroll.VerifyDecommission(refused.User[i].Value, h.cfg.Link.TLS.CA, h.cfg.Node.Name, own)
	if err != nil {
		h.log.Error().Err(err).Msg("the server says that this node was decommissioned, but does not prove it: nothing is changed")
		return
	}
	if err := enroll.Decommission(h.cfg.Data.Dir, why, time.Now()); err != nil {
		h.log.Error().Err(err).Msg("the hub has decommissioned this node, but its keys can't be moved aside: delete the directory identity in data.dir")
	} else {
		h.log.Warn().Msg("the hub has decommissioned this node: its keys and certificates were moved aside (identity.decommissioned in data.dir) " +
			"and are deleted after a day; it works alone until it joins again (edgecore join)")
	}
	if h.cfg.Link.TLS.Key != "" && h.renewer == nil {
		h.log.Warn().Str("key", h.cfg.Link.TLS.Key).Msg("this key was not made by edgecore join, and is left where it is")
	}
	h.end()
}

// deleteDecommissioned deletes the keys of an identity that was given up, when their day is over.
func (h *hubIdentity) deleteDecommissioned() {
	if err := enroll.DeleteDecommissioned(h.cfg.Data.Dir, time.Now()); err != nil {
		h.log.Error().Err(err).Msg("keys that were moved aside can't be deleted: delete the directory identity.decommissioned in data.dir")
	}
}

// certificateOfOtherNode is the common name of the certificate, if it isn't this node's name; with a password the certificate does not
// matter. The node then works alone, as with a wrong password.
func certificateOfOtherNode(o client.Options, node string) string {
	leaf := client.Leaf(o.TLS)
	if o.Password != "" || leaf == nil || leaf.Subject.CommonName == node {
		return ""
	}
	return leaf.Subject.CommonName
}
