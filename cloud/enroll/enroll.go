// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"hash/maphash"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Modes of enrolment (auth.enrollment): what the hub does with a node that presents no token.
const (
	ModeAsk   = "ask"   // they make an EnrollmentRequest, which a person decides about
	ModeToken = "token" // they are refused
	ModeNever = "never" // no node enrols, not even with a token
)

// Broker is what the service needs of the hub's broker.
type Broker interface {
	Publish(broker.Message)
	Disconnect(clientID, reason string) bool
	DisconnectNode(node, reason string) (connected bool)
}

// Options are what a Service is made from.
type Options struct {
	Authority *Authority
	Reader    store.Reader
	Writer    store.Writer // of invitations, which are no objects
	// Objects writes Nodes and EnrollmentRequests by the rules for all objects.
	Objects *objects.Controller
	Watcher store.Watcher
	Broker  func() Broker // which is made after the service
	// Tree and Presence are told of everything that is not about enrolment.
	Tree     broker.Tree
	Presence broker.Presence
	// Mode is Ask, Token or Never.
	Mode string
	// Reserved reports whether a name belongs to a user, so that no node may have it.
	Reserved func(name string) bool
	// NodeLabels are the keys, or globs of them, of labels that a node which joins by an invitation may choose itself, because no fleet or
	// Configuration that has something to protect selects by them. All others wait for somebody to set them.
	NodeLabels []string
	// CheckReferences refuses a node that joins by an invitation of somebody who wasn't signed in, if it would get what only people see who are; nil:
	// nobody is refused.
	CheckReferences func(ctx context.Context, node string, labels map[string]string, labelFrom string) error
	// Hub is the hub's identity, which is in the certificates that it makes; see nodeURI.
	Hub string
	// FormerHubs are those whose data this hub has taken over.
	FormerHubs []string
	// Address is where nodes reach the hub, host:port.
	Address func() string
	Log     zerolog.Logger
	Now     func() time.Time
	// Requests, PerAddress and Age bound the EnrollmentRequests that nodes make: those that wait for a decision in all
	// and from one address, and how long one is kept. 0 takes the default.
	Requests, PerAddress int
	Age                  time.Duration
}

const (
	maxEnrollees      = 2_000 // connected at one time
	enrolleeTime      = 10 * time.Minute
	maxAsked          = 8 // requests in one connection
	maxQueued         = 2_000
	workers           = 64 // that share the store's commits
	defaultRequests   = 1_000
	defaultPerAddress = 50
	defaultAge        = 7 * 24 * time.Hour
	sweepInterval     = time.Minute
)

// Service enrols nodes.
type Service struct {
	o Options

	*requests
	joiner      *joiner
	invitations *invitations

	jobs    chan joinJob
	refused chan refusedNode

	mu        sync.Mutex
	enrollees map[string]*enrollee // by client identifier

	refusals zerolog.Logger // sampled, since anybody can ask
}

// refusedNode is of a node whose certificates were revoked. told says that it was sent the notice that it was decommissioned.
type refusedNode struct {
	node string
	told bool
}

// enrollee is a connected client that may do nothing but enrol.
type enrollee struct {
	id      *broker.Identity
	timer   *time.Timer
	asked   int
	answer  string // the topic of the answer
	request string // the EnrollmentRequest that it waits for
}

type joinJob struct {
	at   topics.Address
	m    broker.Message
	done func(error)
}

// New makes a service. Run has to be called for it to answer.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Requests = cmp.Or(o.Requests, defaultRequests)
	o.PerAddress = cmp.Or(o.PerAddress, defaultPerAddress)
	o.Age = cmp.Or(o.Age, defaultAge)
	s := &Service{
		o: o, jobs: make(chan joinJob, maxQueued), refused: make(chan refusedNode, maxQueued), enrollees: map[string]*enrollee{},
		refusals: o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second}),
	}
	s.joiner = &joiner{o: &s.o, seed: maphash.MakeSeed()}
	s.invitations = &invitations{o: &s.o, joiner: s.joiner}
	s.requests = &requests{o: &s.o, joiner: s.joiner, invitations: s.invitations, answerWaiting: s.answerWaiting, pending: map[string]pendingRequest{}}
	return s
}

// Run answers requests until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			for {
				select {
				case j := <-s.jobs:
					s.answer(ctx, j)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	g.Go(func() error {
		s.followRequests(ctx)
		return nil
	})
	g.Go(func() error { return s.markRefused(ctx) })
	g.Go(func() error { return s.disconnectDeleted(ctx) })
	return g.Wait()
}

// Admit returns the reason why a node may not ask for its first certificate under that name, with that token or without one ("").
// The broker calls it when the node connects.
func (s *Service) Admit(node, token string) error {
	s.mu.Lock()
	full := len(s.enrollees) >= maxEnrollees
	s.mu.Unlock()
	switch {
	case s.o.Mode == ModeNever:
		return resource.Errorf(resource.Forbidden, "", "this hub enrols no nodes (auth.enrollment)")
	case s.o.Reserved(node):
		return resource.Errorf(resource.Forbidden, "", "%s is a user of the hub: the node needs another name", node)
	case full:
		return resource.Errorf(resource.Quota, "", "too many nodes are enrolling: try again in a minute")
	case token == "" && s.o.Mode != ModeAsk:
		return resource.Errorf(resource.Forbidden, "", "this hub enrols nodes with a token only (auth.enrollment): ask for an invitation")
	case token == "":
		return nil
	}
	i, _, err := s.invitations.find(context.Background(), token)
	if err != nil {
		return err
	}
	return i.check(node, "", s.o.Now())
}

// Publish takes requests to enrol, and passes all other messages on.
func (s *Service) Publish(m broker.Message, done func(error)) {
	at, err := topics.Parse(m.Topic)
	if err != nil || at.Kind != topics.KindEnroll {
		s.o.Tree.Publish(m, done)
		return
	}
	if len(m.Payload) > resource.MaxJoinRequest {
		done(resource.Errorf(resource.TooLarge, "", "the request has %d bytes; at most %d are taken", len(m.Payload), resource.MaxJoinRequest))
		return
	}
	s.mu.Lock()
	if e := s.enrollees[m.Publisher.ClientID]; e != nil {
		e.asked++
		if e.asked > maxAsked {
			s.mu.Unlock()
			done(resource.Errorf(resource.Quota, "", "%d requests in one connection: wait for the answer, or connect again", maxAsked))
			return
		}
		e.answer = topics.Address{Node: at.Node, Kind: topics.KindEnrolled, Device: at.Device}.String()
	}
	s.mu.Unlock()
	select {
	case s.jobs <- joinJob{at, m, done}:
	default:
		done(resource.Errorf(resource.Unavailable, "", "too many nodes enrol at once: try again"))
	}
}

// Retained goes through retained topics; none is about enrolment.
func (s *Service) Retained(filter string) func(max int) []broker.Message {
	return s.o.Tree.Retained(filter)
}

// Connected notes a node that enrols.
func (s *Service) Connected(id *broker.Identity) {
	if !id.Has(topics.RoleEnrollee) {
		s.o.Presence.Connected(id)
		return
	}
	e := &enrollee{id: id}
	e.timer = time.AfterFunc(enrolleeTime, func() {
		s.o.Broker().Disconnect(id.ClientID, "nothing was decided in the meantime: connect again")
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enrollees[id.ClientID] = e
}

// Subscribed passes on what is not about enrolment.
func (s *Service) Subscribed(id *broker.Identity, filter string) {
	if !id.Has(topics.RoleEnrollee) {
		s.o.Presence.Subscribed(id, filter)
	}
}

// Disconnected forgets a node that enrolled.
func (s *Service) Disconnected(id *broker.Identity, cause error) {
	if !id.Has(topics.RoleEnrollee) {
		s.o.Presence.Disconnected(id, cause)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.enrollees[id.ClientID]; e != nil {
		e.timer.Stop()
		delete(s.enrollees, id.ClientID)
	}
}

// answer handles a request. The acknowledgement carries the reason of a refusal.
func (s *Service) answer(ctx context.Context, j joinJob) {
	a, err := s.handle(ctx, j)
	if err != nil {
		s.refusals.Warn().Err(err).Str("node", j.at.Node).Str("remote", j.m.Publisher.Remote).Msg("a node was not enrolled")
		j.done(err)
		return
	}
	j.done(nil)
	s.sendAnswer(topics.Address{Node: j.at.Node, Kind: topics.KindEnrolled, Device: j.at.Device}.String(), a)
}

func (s *Service) sendAnswer(topic string, a resource.JoinAnswer) {
	payload, err := json.Marshal(a)
	if err != nil {
		s.o.Log.Error().Err(err).Msg("an answer to a node can't be written")
		return
	}
	s.o.Broker().Publish(broker.Message{Topic: topic, Payload: payload, QoS: 1})
}

func (s *Service) handle(ctx context.Context, j joinJob) (a resource.JoinAnswer, err error) {
	r, err := resource.DecodeJoinRequest(j.m.Payload)
	if err != nil {
		return a, err
	}
	node, by := j.at.Node, *j.m.Publisher
	csr, err := resource.ParseCSR(r.CSR, node)
	if err != nil {
		return a, err
	}
	switch {
	case by.Has(topics.RoleNode):
		return s.joiner.renew(node, by, csr)
	case r.Token == "" && s.o.Mode != ModeAsk:
		return a, resource.Errorf(resource.Unauthorized, "token", "is missing")
	case r.Token == "":
		name := requestName(node, csr.Key)
		s.mu.Lock()
		if e := s.enrollees[by.ClientID]; e != nil {
			e.request = name // before the request is read: every later decision is sent to the node
		}
		s.mu.Unlock()
		return s.requestApproval(ctx, name, node, by, r, csr)
	}
	defer s.joiner.joining(node)()
	i, err := s.invitations.redeem(ctx, r, node, csr.Key)
	if err != nil {
		return a, err
	}
	own, follow, waiting := s.invitations.splitLabels(i, r)
	known, err := s.joiner.supersede(ctx, node, csr.Key, i.Revocation)
	if err != nil {
		return a, err
	}
	if err := s.joiner.writeJoinedNode(ctx, node, csr.Key, joinLabels{given: i.Labels, own: own, follow: follow, waiting: waiting}); err != nil {
		return a, err
	}
	if len(waiting) > 0 {
		s.o.Log.Warn().Str("node", node).Str("labels", resource.FormatPairs(waiting)).
			Msg("a node that joined asks for labels that its invitation doesn't let it choose: set them with edgebus label, or not")
	}
	if a, err = s.joiner.signJoining(ctx, node, csr, known); err == nil {
		s.o.Log.Info().Str("node", node).Str("invitation", i.ID[:shortID]).Str("remote", by.Remote).Str("key", csr.Key).Msg("a node joined")
	}
	return a, err
}

// disconnectDeleted closes the connections of nodes that had joined when their Nodes are deleted: they are not let in again.
func (s *Service) disconnectDeleted(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := s.disconnectDeletedOnce(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Warn().Err(err).Msg("deletions of Nodes can't be followed: trying again")
			backoff.Sleep(ctx, time.Second)
		}
	}
	return nil
}

func (s *Service) disconnectDeletedOnce(ctx context.Context) error {
	page, err := s.o.Reader.List(ctx, resource.KindNode, store.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	stream, err := s.o.Watcher.Watch(ctx, store.Key{Kind: resource.KindNode}, page.Rev)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		events, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Type == store.Deleted && bytes.Contains(e.Object.Data, []byte(resource.JoinedAnnotation)) {
				s.o.Broker().DisconnectNode(e.Object.Name, "the Node "+e.Object.Name+" was deleted: it can join again with a new invitation")
			}
		}
	}
}

// Decommission revokes a node's certificates. When the node connects the next time, it is told to give up its keys; see Notice.
func (s *Service) Decommission(node, by string) error { return s.revoke(node, by, true) }

// revoke makes a node's certificates invalid and closes its connections.
func (s *Service) revoke(node, by string, decommission bool) error {
	if !topics.ValidName(node) {
		return resource.Errorf(resource.Invalid, "node", "%.100q is no node's name: %s", node, topics.NameRule())
	}
	r := s.o.Authority.revoked
	if err := r.add(node, by, decommission); err != nil {
		return err
	}
	s.o.Log.Warn().Str("node", node).Str("by", by).Bool("decommissioned", decommission).Msg("a node's certificates were revoked")
	s.o.Broker().DisconnectNode(node, r.Why(node, nil))
	return s.joiner.setRevokedCondition(context.Background(), node, func(had resource.Condition) resource.Condition {
		if decommission && had.Status == "True" && had.Reason == resource.ReasonDecommissioned {
			return had // it has come back already, and was told
		}
		return r.condition(node, false)
	})
}

// Notice returns what the holder of a certificate is given when it is refused: the signed notice that its node was decommissioned, or
// nothing. With it the node has been told. The authority that signs it is the one that signs the hub's own certificate, which each node trusts.
func (s *Service) Notice(cert *x509.Certificate) broker.UserProperty {
	node, a := cert.Subject.CommonName, s.o.Authority
	if !a.revoked.decommissioned(node, cert) {
		return broker.UserProperty{}
	}
	a.mu.Lock()
	a.dropExpired()
	key := a.signers[0].key
	a.mu.Unlock()
	text, err := resource.Decommissioning{Node: node, Certificate: resource.Fingerprint(cert.Raw)}.Sign(key)
	if err != nil {
		s.o.Log.Error().Err(err).Str("node", node).Msg("the notice that a node was decommissioned can't be signed")
		return broker.UserProperty{}
	}
	s.noteRefusal(node, true)
	return broker.UserProperty{Key: resource.DecommissionProperty, Value: text}
}

// Revoked says why a node is not let in that was revoked; see broker.Auth. A node is not told by this that it was decommissioned: see Notice.
func (s *Service) Revoked(node string, cert *x509.Certificate) string {
	if cert != nil && broker.IsEnrollerCertificate(cert) {
		return s.enrollerRefusal(node, cert)
	}
	why := s.o.Authority.revoked.Why(node, cert)
	if why != "" && cert != nil {
		s.noteRefusal(node, false) // a restored backup doesn't know of the revocation
	}
	if why == "" && cert != nil {
		why = s.joiner.earlierNodeRefusal(node, cert)
	}
	return why
}

// Decommissioned reports whether a node is refused with a certificate because it was decommissioned, so that it is told.
func (s *Service) Decommissioned(node string, cert *x509.Certificate) bool {
	return broker.IsNodeCertificate(cert) && s.o.Authority.revoked.decommissioned(node, cert)
}

// GaveUp notes that a node which is decommissioned has said that it gives up its keys.
func (s *Service) GaveUp(node string) { s.noteRefusal(node, true) }

// Authorities are the certificates of the hub's authorities, in PEM.
func (s *Service) Authorities() []byte { return s.o.Authority.Certificates() }

func (s *Service) noteRefusal(node string, told bool) {
	select {
	case s.refused <- refusedNode{node, told}:
	default: // it is refused again
	}
}

func (s *Service) markRefused(ctx context.Context) error {
	for {
		select {
		case r := <-s.refused:
			err := s.joiner.setRevokedCondition(ctx, r.node, func(had resource.Condition) resource.Condition {
				if had.Status == "False" {
					return had // it has joined again in the meantime
				}
				told := r.told || had.Reason == resource.ReasonDecommissioned
				return s.o.Authority.revoked.condition(r.node, told)
			})
			if err != nil && ctx.Err() == nil {
				s.o.Log.Warn().Err(err).Str("node", r.node).Msg("that a node was revoked can't be written to its status")
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// answerWaiting sends the decision to the nodes that wait for it.
func (s *Service) answerWaiting(request string, a resource.JoinAnswer) {
	var waiting []string
	s.mu.Lock()
	for _, e := range s.enrollees {
		if e.request == request && e.answer != "" {
			waiting = append(waiting, e.answer)
		}
	}
	s.mu.Unlock()
	for _, topic := range waiting {
		s.sendAnswer(topic, a)
	}
}
