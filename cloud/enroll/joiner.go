// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// joiner makes nodes of hosts: it signs their certificates, and writes their Nodes. One of a name joins at a time.
type joiner struct {
	o     *Options
	seed  maphash.Seed
	names [64]sync.Mutex // of nodes that join, by their names
}

// joining lets one node at a time join by a name.
func (j *joiner) joining(node string) (joined func()) {
	lock := &j.names[maphash.String(j.seed, node)%uint64(len(j.names))]
	lock.Lock()
	return lock.Unlock
}

// supersede revokes what was issued for a name before another key joins by it: the hardware that had it was replaced. It may be called
// again with the same key. It returns the node's last revocation.
func (j *joiner) supersede(ctx context.Context, node, key string, known int64) (int64, error) {
	n, err := j.readNode(ctx, node)
	if errors.Is(err, resource.NotFound) {
		return known, nil
	}
	_, had, joined := strings.Cut(n.Metadata.Annotations[resource.JoinedAnnotation], " ")
	r := j.o.Authority.revoked
	if err != nil || !joined || had == key || known > 0 && r.supersededBy(node) == key {
		return known, err
	}
	if known, err = r.supersede(node, key, known); err != nil {
		return known, err
	}
	j.o.Log.Warn().Str("node", node).Str("key", key).Msg("a node joins again with another key: its earlier certificates were revoked")
	j.o.Broker().DisconnectNode(node, r.Why(node, nil))
	return known, nil
}

const (
	nodeURIScheme = "edgebus"
	nodeURIPath   = "/nodes/"
)

// nodeURI names the Node that a certificate is for, and the hub that has it, as a URI in the certificate: a Node that is made again has
// another uid, and what was issued for the one before is good no more. Another hub, such as one that lost its data, has other uids.
func nodeURI(hub, uid string) *url.URL {
	return &url.URL{Scheme: nodeURIScheme, Host: hub, Path: nodeURIPath + uid}
}

// earlierNodeRefusal says why a certificate is refused, if it is for an earlier Node of the name; empty: it is not.
func (j *joiner) earlierNodeRefusal(node string, cert *x509.Certificate) string {
	for _, of := range cert.URIs {
		if of.Scheme != nodeURIScheme || of.Host != j.o.Hub && !slices.Contains(j.o.FormerHubs, of.Host) {
			continue
		}
		n, err := j.readNode(context.Background(), node)
		switch {
		case errors.Is(err, resource.NotFound):
			return fmt.Sprintf("the Node %s was deleted after the certificate was made: it can join again with a new invitation", node)
		case err != nil:
			return "the Node " + node + " can't be read at this moment: try again"
		case n.Metadata.UID != strings.TrimPrefix(of.Path, nodeURIPath):
			return fmt.Sprintf("the certificate is for an earlier Node %s, which was deleted: it can join again with a new invitation", node)
		}
	}
	return ""
}

// renew signs the next certificate of a node that has presented one. A node that is authenticated in another way, such as over
// loopback on the hub's own host, gets no certificate.
func (j *joiner) renew(node string, by broker.Identity, csr resource.CSR) (a resource.JoinAnswer, err error) {
	if by.Certificate == nil {
		return a, resource.Errorf(resource.Forbidden, "", "only a node that has signed in with a certificate gets the next one: let it join with an invitation")
	}
	r := j.o.Authority.revoked
	known := r.at(node) // before it is asked: a revocation from here on is found by Sign
	if why := r.Why(node, by.Certificate); why != "" {
		return a, resource.Errorf(resource.Unauthorized, "", "%s", why)
	}
	if a, err = j.issue(node, csr, known, by.Certificate.URIs...); err == nil {
		j.o.Log.Info().Str("node", node).Str("remote", by.Remote).Str("key", csr.Key).Msg("a node's certificate was renewed")
	}
	return a, err
}

// signJoining signs the certificate of a node that joins.
func (j *joiner) signJoining(ctx context.Context, node string, csr resource.CSR, revoked int64) (a resource.JoinAnswer, err error) {
	n, err := j.readNode(ctx, node)
	if err != nil {
		return a, err
	}
	if a, err = j.issue(node, csr, revoked, nodeURI(j.o.Hub, n.Metadata.UID)); err == nil {
		err = j.setRevokedCondition(ctx, node, joinedAgain)
	}
	return a, err
}

func (j *joiner) issue(node string, csr resource.CSR, revoked int64, of ...*url.URL) (a resource.JoinAnswer, err error) {
	cert, err := j.o.Authority.Sign(node, csr.PublicKey, revoked, of...)
	if err != nil {
		return a, err
	}
	return resource.JoinAnswer{
		State: resource.JoinIssued, Certificate: string(encodeCertificates(cert.Raw)), Authorities: string(j.o.Authority.Certificates()),
	}, nil
}

// joinLabels are the labels of a node that joins: those that the invitation or the approver gives, those that it chooses itself, those that follow
// what it reports, and those that it asks for and doesn't get.
type joinLabels struct{ given, own, follow, waiting map[string]string }

// writeJoinedNode creates the Node of a node that joins, or marks the existing one as joined. Labels given by the invitation or the approver
// replace those of the Node; labels that the node asks for, and those that follow the system information, are only added.
func (j *joiner) writeJoinedNode(ctx context.Context, node, key string, w joinLabels) error {
	joined := resource.FormatTime(j.o.Now().UTC().Truncate(time.Second)) + " " + key
	for range maxAttempts {
		err := objects.Update(ctx, j.o.Objects, store.Key{Name: node}, func(n *resource.Node) error {
			notes := joinedAnnotations(n.Metadata, joined, w)
			n.Metadata.Labels, n.Metadata.Annotations = withLabels(n.Metadata.Labels, w.given, w.own), notes
			return nil
		})
		if errors.Is(err, resource.NotFound) {
			_, err = objects.Create(ctx, j.o.Objects, &resource.Node{Metadata: resource.Meta{
				Name: node, Labels: withLabels(nil, w.given, w.own), Annotations: joinedAnnotations(resource.Meta{}, joined, w),
			}})
		}
		if !shouldRetry(err, resource.AlreadyExists) && !errors.Is(err, resource.NotFound) { // it was made, or deleted, in between
			return err
		}
	}
	return resource.Errorf(resource.Unavailable, "", "the Node %s is changed by others all the time: try again", node)
}

// shouldRetry reports whether to read and write an object again: another has changed or created it, or the outcome of the write is unknown.
func shouldRetry(err error, kind resource.ErrorKind) bool {
	return errors.Is(err, kind) || errors.Is(err, store.ErrUnknown)
}

// joinedAnnotations returns the annotations of a Node that has joined. They list the labels that follow the system information, and mark
// the values that the node itself has given.
func joinedAnnotations(had resource.Meta, joined string, w joinLabels) map[string]string {
	notes := map[string]string{}
	maps.Copy(notes, had.Annotations)
	notes[resource.JoinedAnnotation] = joined
	delete(notes, askedAnnotation)
	if len(w.waiting) > 0 {
		text, _ := json.Marshal(w.waiting) // texts
		notes[askedAnnotation] = string(text)
	}
	given, own, follow := w.given, w.own, w.follow
	if len(follow) == 0 {
		return notes
	}
	from, values := maps.Clone(follow), resource.ParsePairs(notes[resource.LabelsGivenAnnotation])
	maps.Copy(from, resource.ParsePairs(notes[resource.LabelFromAnnotation]))
	for key := range follow {
		_, labelled := had.Labels[key]
		_, replaced := given[key]
		if value, has := own[key]; has && !labelled && !replaced {
			values[key] = resource.LabelValue(value)
		}
	}
	notes[resource.LabelFromAnnotation] = resource.FormatPairs(from)
	if len(values) > 0 {
		notes[resource.LabelsGivenAnnotation] = resource.FormatPairs(values)
	}
	return notes
}

func withLabels(has, given, own map[string]string) map[string]string {
	labels := map[string]string{}
	for _, from := range []map[string]string{own, has, given} {
		maps.Copy(labels, from)
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

func (j *joiner) readNode(ctx context.Context, name string) (n resource.Node, err error) {
	o, err := j.o.Reader.Get(ctx, store.Key{Kind: resource.KindNode, Name: name})
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal(o.Data, &n)
}

// joinedAgain is the condition Revoked of a node that has a new certificate.
func joinedAgain(had resource.Condition) resource.Condition {
	if had.Status != "" {
		had.Status, had.Reason, had.Message = "False", resource.ReasonJoined, ""
	}
	return had
}

// setRevokedCondition changes the condition Revoked of a Node, if there is one. next returns it as it is to be; without a status there is to be none.
func (j *joiner) setRevokedCondition(ctx context.Context, node string, next func(had resource.Condition) resource.Condition) error {
	err := objects.UpdateStatus(ctx, j.o.Objects, store.Key{Name: node}, func(n *resource.Node) error {
		list := n.Status.Conditions
		var had resource.Condition
		if i := slices.IndexFunc(list, func(c resource.Condition) bool { return c.Type == resource.ConditionRevoked }); i >= 0 {
			had = list[i]
		}
		c := next(had)
		if c.Status != had.Status || c.Reason != had.Reason || c.Message != had.Message {
			n.Status.Conditions = resource.SetCondition(list, c, j.o.Now())
		}
		return nil
	})
	return store.IgnoreNotFound(err)
}

// joinedNode returns the node that has a name. Revocations outlive a restored backup, and the Node's condition doesn't.
func (j *joiner) joinedNode(ctx context.Context, node string) (objects.JoinedNode, error) {
	h, err := objects.ReadJoinedNode(ctx, j.o.Reader, node)
	at, bad := time.Parse(time.RFC3339, h.At)
	r := j.o.Authority.revoked
	if err == nil && bad == nil && at.Add(time.Second).UnixMilli() <= r.at(node) && r.supersededBy(node) != h.Key { // At is in whole seconds
		return objects.JoinedNode{}, nil
	}
	return h, err
}
