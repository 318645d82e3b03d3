// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/client/presence"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// busClient is the agent's connection to the node's broker: what the cloud has given the node, as it is now, and the way back.
type busClient struct {
	mqtt     *client.Client
	presence *presence.Presence // nil: this is no agent, but a command that looks
	changed  func()             // a value, or the connection
	log      zerolog.Logger

	mu          sync.Mutex
	node        string                                // empty until the broker has said it
	values      map[string][]byte                     // the spec, secrets and their parts, by key
	connections int                                   // how many connections there were
	complete    bool                                  // values has all that the broker has: what is not there is not on the broker
	blobs       map[string][]chan resource.BlobAnswer // requests without an outcome, by digest
}

// blobAnswers is the response topic of the agent's requests for blobs.
const blobAnswers = "blobs/answers/" + clientID

// blobRepeat is how long an unanswered request waits before it is sent again.
const blobRepeat = 10 * time.Second

// clientID is the agent's at the broker. There is one agent on a node.
const clientID = "edgeagent"

func newBus(id string, servers []string, log zerolog.Logger, changed func()) (*busClient, error) {
	b := &busClient{changed: changed, log: log, values: map[string][]byte{}, blobs: map[string][]chan resource.BlobAnswer{}}
	var subscriptions []client.Subscription
	for _, key := range []string{"spec", "spec/parts/+", "secrets/#", "upgrade", blobAnswers} {
		subscriptions = append(subscriptions, client.Subscription{Filter: topics.TopicOf("+", key), QoS: 1})
	}
	var err error
	b.mqtt, err = client.New(client.Options{
		Servers: servers, ClientID: id, CleanStart: true, KeepAlive: 30 * time.Second,
		Backoff: client.Backoff{Min: 200 * time.Millisecond, Max: 10 * time.Second}, Log: log,
		Subscriptions: subscriptions, OnConnect: b.connected, OnMessage: b.message,
	})
	if err == nil && id == clientID {
		b.presence = presence.New(b.mqtt, topics.KindAgentState)
	}
	return b, err
}

// connected clears what an earlier connection delivered, because the broker doesn't send what was removed in between. Retained
// messages follow: at last the node's status, which each core has. It is subscribed to after the others, so that all of theirs have come
// when it comes.
func (b *busClient) connected(ctx context.Context, _ bool) error {
	b.mu.Lock()
	clear(b.values)
	b.connections++
	b.complete = false
	b.mu.Unlock()
	b.changed()
	if err := b.mqtt.Subscribe(ctx, client.Subscription{Filter: topics.TopicOf("+", "status"), QoS: 1}); err != nil || b.presence == nil {
		return err
	}
	return b.presence.Connected(ctx)
}

func (b *busClient) message(m client.Message) {
	a, err := topics.Parse(m.Topic)
	if err != nil {
		return
	}
	if b.presence != nil {
		b.presence.Named(a.Node)
	}
	if a.Kind == topics.KindBlobAnswer {
		b.blobAnswer(m.Payload)
		return
	}
	b.mu.Lock()
	if b.node == "" {
		b.log.Info().Str("node", a.Node).Msg("connected to the node's broker")
	}
	b.node = a.Node
	key := a.Key()
	same := bytes.Equal(b.values[key], m.Payload)
	switch {
	case a.Kind == topics.KindStatus:
		if same = false; !b.complete && !m.Retain {
			go b.askStatus() // it came by itself, before what is retained
		}
		b.complete = b.complete || m.Retain
	case len(m.Payload) == 0:
		delete(b.values, key)
	default:
		b.values[key] = m.Payload
	}
	b.mu.Unlock()
	if !same {
		b.changed()
	}
}

// document is a value of the down map that may be in parts; false: it is not there, or not whole yet.
func (b *busClient) document(key string) ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	value, ok := b.values[key]
	if !ok {
		return nil, false
	}
	return topics.JoinDocument(value, func(n int) ([]byte, bool) {
		part, ok := b.values[topics.PartKey(key, n)]
		return part, ok
	})
}

// spec is the spec that the node is to have; nil: none is known. A spec that can't be read is an error.
func (b *busClient) spec() (*resource.RenderedSpec, error) {
	text, ok := b.document("spec")
	if !ok {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	spec := new(resource.RenderedSpec)
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("the spec is not one that this agent can read: %w", err)
	}
	if spec.RenderedVersion == "" {
		return nil, errors.New("the spec has no renderedVersion")
	}
	return spec, nil
}

// askStatus has the broker send the node's status after all else that it has.
func (b *busClient) askStatus() {
	ctx, cancel := context.WithTimeout(context.Background(), blobRepeat)
	defer cancel()
	_ = b.mqtt.Subscribe(ctx, client.Subscription{Filter: topics.TopicOf("+", "status"), QoS: 1}) // without a connection the next one asks
}

// errOrderUnknown is of what the broker has not said since the last connection, and may say yet.
var errOrderUnknown = errors.New("the node's broker has not said yet what it has")

// order is the newest order of an upgrade; nil: there is none, or, with errOrderUnknown, nobody knows. One that can't be read is an error, with as
// much of it as is known.
func (b *busClient) order() (*resource.UpgradeOrder, error) {
	text, ok := b.document("upgrade")
	b.mu.Lock()
	whole := b.complete
	b.mu.Unlock()
	switch {
	case !ok && !whole:
		return nil, errOrderUnknown
	case !ok:
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	o, err := resource.ParseUpgradeOrder(text)
	return &o, err
}

// secret is the value of a Secret. It is errWaiting until the broker has the Secret in the version that the spec refers to.
func (b *busClient) secret(k resource.SecretKey) ([]byte, error) {
	text, ok := b.document("secrets/" + k.Name)
	if !ok {
		return nil, fmt.Errorf("%w: the Secret %s is not on this node yet", errWaiting, strings.Replace(k.Name, ".", "/", 1))
	}
	var s resource.SecretValues
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("the Secret %s can't be read: %w", k.Name, err)
	}
	if s.Version != k.Version {
		return nil, fmt.Errorf("%w: the Secret %s is here in another version than the spec refers to", errWaiting, strings.Replace(k.Name, ".", "/", 1))
	}
	value, ok := s.Data[k.Key]
	if !ok {
		return nil, specFailure{resource.FailedContent, fmt.Sprintf("the Secret %s has no key %s", strings.Replace(k.Name, ".", "/", 1), k.Key)}
	}
	return value, nil
}

// connection is the node's name, empty until it is known, and the number of the connection, 0 before the first.
func (b *busClient) connection() (node string, number int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.node, b.connections
}

// connectedNow is nil while there is a connection to the node's broker.
func (b *busClient) connectedNow() error {
	if node, _ := b.connection(); node == "" || !b.mqtt.Connected() {
		return errors.New("its broker does not let the agent connect")
	}
	return nil
}

// publish publishes a report, and waits until the core has stored it.
func (b *busClient) publish(ctx context.Context, node string, kind topics.Kind, report []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	topic := topics.Address{Node: node, Kind: kind}.String()
	return b.mqtt.Publish(ctx, client.Message{Topic: topic, Payload: report, QoS: 1, Retain: true})
}

func (b *busClient) blobAnswer(payload []byte) {
	var answer resource.BlobAnswer
	if err := json.Unmarshal(payload, &answer); err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, waiting := range b.blobs[answer.Digest] {
		replaceAnswer(waiting, answer)
	}
}

// replaceAnswer leaves the newest answer, which is the one that counts, in a channel of capacity 1.
func replaceAnswer(waiting chan resource.BlobAnswer, answer resource.BlobAnswer) {
	for {
		select {
		case waiting <- answer:
			return
		default:
		}
		select {
		case <-waiting:
		default:
		}
	}
}

// blob has the core download a blob and opens it. It waits until ctx ends, as long as there is a broker; progress is told how
// many bytes the core has.
func (b *busClient) blob(ctx context.Context, c resource.Content, progress func(received int64)) (io.ReadCloser, error) {
	answers := make(chan resource.BlobAnswer, 1)
	b.mu.Lock()
	b.blobs[c.Digest] = append(b.blobs[c.Digest], answers) // the upgrade and the spec may want the same
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		left := slices.DeleteFunc(slices.Clone(b.blobs[c.Digest]), func(of chan resource.BlobAnswer) bool { return of == answers })
		if b.blobs[c.Digest] = left; len(left) == 0 {
			delete(b.blobs, c.Digest)
		}
	}()
	for {
		if err := b.requestBlob(ctx, c); err != nil {
			return nil, err
		}
		repeat := time.NewTimer(blobRepeat)
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-repeat.C:
				again = true
			case answer := <-answers:
				if answer.Done() {
					return openBlob(answer)
				}
				progress(answer.Received)
				repeat.Reset(blobRepeat)
			}
		}
	}
}

func (b *busClient) requestBlob(ctx context.Context, c resource.Content) error {
	node, _ := b.connection()
	if node == "" || !b.mqtt.Connected() {
		return fmt.Errorf("%w: no connection to the node's broker, so the content %s can't be fetched", errWaiting, c.Digest)
	}
	payload, err := json.Marshal(resource.BlobRequest{Digest: c.Digest, Size: c.Size})
	if err != nil {
		return err
	}
	err = b.mqtt.Publish(ctx, client.Message{
		Topic: topics.TopicOf(node, "blobs/get"), Payload: payload, QoS: 1,
		ResponseTopic: topics.TopicOf(node, blobAnswers), Correlation: []byte(c.Digest[:min(len(c.Digest), 100)]),
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: the content %s can't be requested: %w", errWaiting, c.Digest, err)
	}
	return err
}

func openBlob(answer resource.BlobAnswer) (io.ReadCloser, error) {
	switch {
	case answer.Error == "":
		f, err := os.Open(answer.Path)
		if err != nil {
			return nil, fmt.Errorf("%w: the content %s: %w", errWaiting, answer.Digest, err)
		}
		return f, nil
	case answer.Reason == string(resource.Unavailable):
		return nil, fmt.Errorf("%w: the content %s: %s", errWaiting, answer.Digest, answer.Error)
	}
	return nil, specFailure{resource.FailedContent, fmt.Sprintf("the content %s: %s", answer.Digest, answer.Error)}
}
