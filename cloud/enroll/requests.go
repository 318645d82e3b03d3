// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// remoteAnnotation of an EnrollmentRequest is the address that the node asked from.
const remoteAnnotation = objects.RemoteAnnotation

// askedAnnotation of an EnrollmentRequest holds the labels, in JSON, that the node itself asked for. Those that it still
// has when it is approved only add to the Node's; what the approver changed or added replaces them. At a Node it holds those that the
// node asked for and didn't get.
const askedAnnotation = objects.AskedLabelsAnnotation

// pendingRequest is an EnrollmentRequest that waits for a decision.
type pendingRequest struct{ address string }

// requests are the EnrollmentRequests: those that nodes make here, and the decisions about all of them.
type requests struct {
	o           *Options
	joiner      *joiner
	invitations *invitations
	// answerWaiting sends the decision about a request to the nodes that wait for it.
	answerWaiting func(request string, a resource.JoinAnswer)

	mu      sync.Mutex
	pending map[string]pendingRequest // without a decision, by name
}

// requestName returns the name of the EnrollmentRequest of a node and its key. Another key makes another request, so that no one
// can replace the request of a waiting node.
func requestName(node, key string) string {
	const most = 200
	return node[:min(len(node), most)] + "-" + key[:shortID]
}

// requestApproval creates the EnrollmentRequest of a node, or returns the decision about it.
func (q *requests) requestApproval(ctx context.Context, name, node string, by broker.Identity, r resource.JoinRequest, csr resource.CSR) (a resource.JoinAnswer, err error) {
	key := store.Key{Kind: resource.KindEnrollmentRequest, Name: name}
	o, err := q.o.Reader.Get(ctx, key)
	if errors.Is(err, resource.NotFound) {
		return q.makeRequest(ctx, name, node, by, r)
	}
	if err != nil {
		return a, err
	}
	er, err := decodeRequest(o)
	if err != nil {
		return a, err
	}
	if stored, err := resource.ParseCSR(er.Spec.CSR, node); err != nil || stored.Key != csr.Key || requestedNode(er) != node {
		return a, resource.Errorf(resource.Conflict, "", "the EnrollmentRequest %s is another node's", name)
	}
	return q.decided(er), nil
}

// makeRequest stores a request for approval, unless the limits are reached.
func (q *requests) makeRequest(ctx context.Context, name, node string, by broker.Identity, r resource.JoinRequest) (a resource.JoinAnswer, err error) {
	address := daemon.Network(by.Remote)
	if _, err = q.countPending(name, address); err != nil {
		return a, err
	}
	notes := map[string]string{remoteAnnotation: address}
	if len(r.Labels) > 0 {
		asked, err := json.Marshal(r.Labels)
		if err != nil {
			return a, err
		}
		notes[askedAnnotation] = string(asked)
	}
	if len(r.LabelFrom) > 0 {
		notes[resource.LabelFromAnnotation] = resource.FormatPairs(r.LabelFrom)
	}
	_, err = objects.Create(ctx, q.o.Objects, &resource.EnrollmentRequest{
		Metadata: resource.Meta{Name: name, Annotations: notes},
		Spec:     resource.EnrollmentSpec{CSR: r.CSR, NodeName: node, Labels: r.Labels, SystemInfo: r.SystemInfo},
	})
	if err != nil && !errors.Is(err, resource.AlreadyExists) {
		q.forgetPending(name)
		return a, err
	}
	q.o.Log.Info().Str("node", node).Str("request", name).Str("remote", by.Remote).Msg("a node asks to join: approve or deny it with edgebus approve, edgebus deny")
	return resource.JoinAnswer{State: resource.JoinWaiting, Request: name}, nil
}

// CountRequest counts a request that somebody makes in the hub's API for a host, as if the host had asked over MQTT; settled takes it back.
func (q *requests) CountRequest(name, remote string) (settled func(), err error) {
	if q.o.Mode == ModeNever {
		return nil, resource.Errorf(resource.Forbidden, "", "this hub enrols no nodes (auth.enrollment)")
	}
	added, err := q.countPending(name, daemon.Network(remote))
	return func() {
		if added {
			q.forgetPending(name)
		}
	}, err
}

// countPending adds a request to those that wait, unless it is one of them or the limits are reached.
func (q *requests) countPending(name, address string) (added bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.pending[name]; waits {
		return false, nil
	}
	of := 0
	for _, p := range q.pending {
		if p.address == address {
			of++
		}
	}
	if all := len(q.pending); all >= q.o.Requests || of >= q.o.PerAddress {
		return false, resource.Errorf(resource.Quota, "", "too many nodes wait for approval (%d, %d of them from %s): try again when some of them are decided, or ask for an invitation", all, of, address)
	}
	q.pending[name] = pendingRequest{address}
	return true, nil
}

func (q *requests) forgetPending(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pending, name)
}

func decodeRequest(o store.Object) (er resource.EnrollmentRequest, err error) {
	if err := json.Unmarshal(o.Data, &er); err != nil {
		return er, err
	}
	if len(o.Status) > 0 {
		err = json.Unmarshal(o.Status, &er.Status)
	}
	return er, err
}

func requestedNode(er resource.EnrollmentRequest) string {
	return cmp.Or(er.Spec.NodeName, er.Metadata.Name)
}

// decided returns the answer to the node about its request.
func (q *requests) decided(er resource.EnrollmentRequest) resource.JoinAnswer {
	a := resource.JoinAnswer{State: resource.JoinWaiting, Request: er.Metadata.Name}
	for _, c := range er.Status.Conditions {
		if c.Status == "True" && (c.Type == resource.Denied || c.Type == conditionFailed) {
			a.State, a.Reason = resource.JoinDenied, c.Message
			return a
		}
	}
	if er.Status.Certificate != "" {
		a.State, a.Certificate, a.Authorities = resource.JoinIssued, er.Status.Certificate, string(q.o.Authority.Certificates())
	}
	return a
}

const conditionFailed = "Failed"

// followRequests carries out decisions about EnrollmentRequests, and deletes old requests. It goes through all of them from time to time,
// so that failed steps are tried again.
func (q *requests) followRequests(ctx context.Context) {
	for ctx.Err() == nil {
		if err := q.followRequestsOnce(ctx); err != nil && ctx.Err() == nil {
			q.o.Log.Warn().Err(err).Msg("EnrollmentRequests can't be followed: trying again")
			backoff.Sleep(ctx, time.Second)
		}
	}
}

// followRequestsOnce handles all requests, and then each one that changes, for sweepInterval.
func (q *requests) followRequestsOnce(ctx context.Context) error {
	page, err := q.o.Reader.List(ctx, resource.KindEnrollmentRequest, store.ListOptions{})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, o := range page.Items {
		there[o.Name] = true
		q.handleRequest(ctx, o)
	}
	// One that was deleted between two watches counts no more. One that is about to be stored counts again when its event comes.
	q.mu.Lock()
	maps.DeleteFunc(q.pending, func(name string, _ pendingRequest) bool { return !there[name] })
	q.mu.Unlock()
	if _, err := q.invitations.list(ctx); err != nil {
		return err
	}
	stream, err := q.o.Watcher.Watch(ctx, store.Key{Kind: resource.KindEnrollmentRequest}, page.Rev)
	if err != nil {
		return err
	}
	defer stream.Close()
	turn, stop := context.WithTimeout(ctx, sweepInterval)
	defer stop()
	for {
		events, err := stream.Next(turn)
		if turn.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Type == store.Deleted {
				q.forgetPending(e.Object.Name)
				q.answerWaiting(e.Object.Name, resource.JoinAnswer{State: resource.JoinDenied, Request: e.Object.Name, Reason: "the request was deleted"})
				continue
			}
			q.handleRequest(ctx, e.Object)
		}
	}
}

// deleteRequest deletes a request, unless it is another one of that name.
func (q *requests) deleteRequest(ctx context.Context, key store.Key, er resource.EnrollmentRequest) error {
	return objects.DeleteIf(ctx, q.o.Objects, key, func(now *resource.EnrollmentRequest) bool { return now.Metadata.UID == er.Metadata.UID })
}

// handleRequest carries out the next step of one request.
func (q *requests) handleRequest(ctx context.Context, o store.Object) {
	er, err := decodeRequest(o)
	if err != nil {
		q.o.Log.Error().Err(err).Stringer("object", o.Key).Msg("the EnrollmentRequest can't be read")
		return
	}
	if at := er.Metadata.CreationTimestamp; at != nil && q.o.Now().Sub(*at) > max(q.o.Age, enrollerValidity(er)) {
		if err := q.deleteRequest(ctx, o.Key, er); err != nil && !errors.Is(err, resource.NotFound) {
			q.o.Log.Warn().Err(err).Stringer("object", o.Key).Msg("an old EnrollmentRequest can't be deleted")
		}
		return
	}
	if er.Spec.Approval == "" {
		q.mu.Lock()
		q.pending[o.Name] = pendingRequest{er.Metadata.Annotations[remoteAnnotation]}
		q.mu.Unlock()
		return
	}
	q.forgetPending(o.Name)
	if a := q.decided(er); a.State != resource.JoinWaiting {
		q.answerWaiting(o.Name, a)
		return
	}
	defer q.joiner.joining(requestedNode(er))()
	if o, err = q.o.Reader.Get(ctx, o.Key); err == nil { // who wrote the decision may have had it carried out
		er, err = decodeRequest(o)
	}
	if err != nil || q.decided(er).State != resource.JoinWaiting {
		return
	}
	if err := q.carryOut(ctx, &er); err != nil {
		q.o.Log.Warn().Err(err).Str("request", o.Name).Msg("an EnrollmentRequest could not be carried out: it is tried again")
		return
	}
	err = objects.UpdateStatus(ctx, q.o.Objects, o.Key, func(now *resource.EnrollmentRequest) error {
		if now.Metadata.UID == er.Metadata.UID {
			now.Status = er.Status
		}
		return nil
	})
	if err != nil && !errors.Is(err, resource.NotFound) {
		q.o.Log.Warn().Err(err).Str("request", o.Name).Msg("the status of an EnrollmentRequest was not written: it is tried again")
	}
}

// Settle carries out the decision about a request that was just written, so that who wrote it finds the certificate when it asks.
func (q *requests) Settle(ctx context.Context, name string) error {
	o, err := q.o.Reader.Get(ctx, store.Key{Kind: resource.KindEnrollmentRequest, Name: name})
	if err == nil {
		q.handleRequest(ctx, o)
	}
	return err
}

// defaultEnrollerValidity is how long an enroller's certificate is valid, if its request doesn't say.
const defaultEnrollerValidity = 90 * 24 * time.Hour

// enrollerValidity is how long the certificate of an enroller's request is valid, and so how long its request is kept: 0 for all others.
func enrollerValidity(er resource.EnrollmentRequest) time.Duration {
	if er.Spec.SignerName != resource.SignerEnroller || er.Spec.Approval != resource.Approved {
		return 0
	}
	return cmp.Or(time.Duration(er.Spec.ExpirationSeconds)*time.Second, defaultEnrollerValidity)
}

// enrollerRefusal says why an enroller's certificate is taken no more: it is as long as its request is there.
func (q *requests) enrollerRefusal(name string, cert *x509.Certificate) string {
	o, err := q.o.Reader.Get(context.Background(), store.Key{Kind: resource.KindEnrollmentRequest, Name: name})
	switch {
	case errors.Is(err, resource.NotFound):
		return "the request of the enroller " + name + " was deleted, and with it its certificate"
	case err != nil:
		return "the request of the enroller " + name + " can't be read at this moment: try again"
	}
	er, err := decodeRequest(o)
	if err == nil && er.Spec.SignerName == resource.SignerEnroller && er.Status.Certificate == string(encodeCertificates(cert.Raw)) {
		return ""
	}
	return "the certificate is none of the request " + name
}

// signOther carries out an approved request for a certificate with which nobody joins.
func (q *requests) signOther(ctx context.Context, er *resource.EnrollmentRequest, csr resource.CSR) error {
	node := requestedNode(*er)
	if er.Spec.SignerName == resource.SignerEnroller {
		cert, err := q.o.Authority.SignEnroller(er.Metadata.Name, csr.PublicKey, enrollerValidity(*er))
		if err != nil {
			return err
		}
		er.Status.Certificate = string(encodeCertificates(cert.Raw))
		q.o.Log.Info().Str("enroller", er.Metadata.Name).Str("key", csr.Key).Msg("the certificate of an enroller was signed")
		return nil
	}
	known, err := strconv.ParseInt(er.Metadata.Annotations[objects.RenewalAnnotation], 10, 64)
	if err != nil {
		return resource.Errorf(resource.Forbidden, "", "a node requests its renewal itself")
	}
	n, err := q.joiner.readNode(ctx, node)
	if err != nil {
		return err
	}
	a, err := q.joiner.issue(node, csr, known, nodeURI(q.o.Hub, n.Metadata.UID))
	if err != nil {
		return err
	}
	er.Status.Certificate = a.Certificate
	q.o.Log.Info().Str("node", node).Str("request", er.Metadata.Name).Str("key", csr.Key).Msg("a node's certificate was renewed")
	return q.dropRenewals(ctx, node, er.Metadata.Name)
}

// CheckRenewal returns the node's last revocation, which a request for the renewal of its certificate notes: if the node is revoked after that, it
// gets none. A node that signed in with something else than its certificate gets none either.
func (q *requests) CheckRenewal(id broker.Identity) (after string, err error) {
	if id.Certificate == nil {
		return "", resource.Errorf(resource.Forbidden, "", "only a node that has signed in with a certificate gets the next one")
	}
	r := q.o.Authority.revoked
	known := r.at(id.Node)
	if why := r.Why(id.Node, id.Certificate); why != "" {
		return "", resource.Errorf(resource.Unauthorized, "", "%s", why)
	}
	return strconv.FormatInt(known, 10), nil
}

// dropRenewals deletes the earlier requests for renewals of a node.
func (q *requests) dropRenewals(ctx context.Context, node, but string) error {
	page, err := q.o.Reader.List(ctx, resource.KindEnrollmentRequest, store.ListOptions{})
	if err != nil {
		return err
	}
	for _, o := range page.Items {
		if o.Name == but || !bytes.Contains(o.Data, []byte(objects.RenewalAnnotation)) {
			continue
		}
		er, err := decodeRequest(o)
		if err != nil || er.Spec.SignerName != resource.SignerRenewal || requestedNode(er) != node {
			continue
		}
		if err := q.deleteRequest(ctx, o.Key, er); err != nil && !errors.Is(err, resource.NotFound) {
			return err
		}
	}
	return nil
}

// carryOut signs the certificate of an approved request, and writes the decision into the status. After an error it can be called
// again.
func (q *requests) carryOut(ctx context.Context, er *resource.EnrollmentRequest) error {
	node := requestedNode(*er)
	set := func(kind, reason, message string) {
		c := resource.Condition{Type: kind, Status: "True", Reason: reason, Message: message}
		er.Status.Conditions = resource.SetCondition(er.Status.Conditions, c, q.o.Now())
		resource.SetObservedGeneration(er.Status.Conditions, er.Metadata.Generation, kind)
	}
	if er.Spec.Approval == resource.Denied {
		set(resource.Denied, "Denied", "the request was denied")
		q.o.Log.Info().Str("node", node).Str("request", er.Metadata.Name).Msg("an EnrollmentRequest was denied")
		return nil
	}
	csr, err := resource.ParseCSR(er.Spec.CSR, node)
	switch {
	case err != nil:
		set(conditionFailed, "InvalidCSR", err.Error())
		return nil
	case q.o.Reserved(node):
		set(conditionFailed, "NameTaken", node+" is a user of auth.users: the node needs another name")
		return nil
	case er.Spec.SignerName != "":
		err := q.signOther(ctx, er, csr)
		switch {
		case errors.Is(err, resource.Unauthorized) || errors.Is(err, resource.Forbidden) || errors.Is(err, resource.NotFound):
			set(conditionFailed, "NotSigned", err.Error())
			return nil
		case err == nil:
			set(resource.Approved, "Approved", "the request was approved, and the hub signed the certificate")
		}
		return err
	}
	holder, err := q.joiner.joinedNode(ctx, node)
	if err != nil {
		return err
	}
	if holder.Joined() && holder.Key != csr.Key && !er.Spec.Replace { // which has joined since the approval
		set(conditionFailed, "NameTaken", "a node "+node+" has joined with another key, at "+holder.At+": make the request again, and approve it with spec.replace")
		return nil
	}
	revoked, err := q.joiner.supersede(ctx, node, csr.Key, q.o.Authority.revoked.at(node))
	if err != nil {
		return err
	}
	given, own := er.Spec.Labels, map[string]string{}
	follow := resource.ParsePairs(er.Metadata.Annotations[resource.LabelFromAnnotation])
	if text := er.Metadata.Annotations[askedAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &own); err != nil {
			own = nil // the labels were edited: all of them are the approver's
		}
		given = maps.Clone(given)
		maps.DeleteFunc(follow, func(key, _ string) bool { // a label of the approver's does not follow
			asked, has := own[key]
			return has && er.Spec.Labels[key] != asked
		})
		maps.DeleteFunc(given, func(key, value string) bool { asked, has := own[key]; return has && asked == value })
		maps.DeleteFunc(own, func(key, value string) bool { return er.Spec.Labels[key] != value })
	}
	if err := q.joiner.writeJoinedNode(ctx, node, csr.Key, joinLabels{given: given, own: own, follow: follow}); err != nil {
		return err
	}
	a, err := q.joiner.signJoining(ctx, node, csr, revoked)
	if err != nil {
		return err
	}
	er.Status.Certificate = a.Certificate
	set(resource.Approved, "Approved", "the request was approved, and the hub signed the certificate")
	q.o.Log.Info().Str("node", node).Str("request", er.Metadata.Name).Str("key", csr.Key).Msg("a node joined: its request was approved")
	return nil
}
