// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// RenewOptions are what a Renewer needs.
type RenewOptions struct {
	Identity Identity
	Node     string
	// Publish sends a request to the hub over the node's link, and calls done with what became of it.
	Publish func(topic string, payload []byte, done func(error))
	// Noted is told after each attempt why it failed (nil: it didn't), and since when attempts fail. It may be nil.
	Noted func(err error, since time.Time)
	// Renewed is called after the certificate was renewed. It may be nil.
	Renewed func(ctx context.Context)
	Log     zerolog.Logger
	Now     func() time.Time
}

// Renewer gets the node's next certificate when two thirds of the time of the present one have passed, with a new key.
// The next connection uses it; Renewed sees to it that there is one soon.
type Renewer struct {
	o       RenewOptions
	kick    chan struct{}
	answers chan receivedAnswer

	since time.Time // the first of the failures in a row
}

type receivedAnswer struct {
	request string
	payload []byte
}

const (
	answerTimeout = 30 * time.Second
	maxSleep      = time.Minute // of a long wait
)

// NewRenewer makes a Renewer. Run does the work.
func NewRenewer(o RenewOptions) *Renewer {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Noted == nil {
		o.Noted = func(error, time.Time) {}
	}
	if o.Renewed == nil {
		o.Renewed = func(context.Context) {}
	}
	return &Renewer{o: o, kick: make(chan struct{}, 1), answers: make(chan receivedAnswer, 1)}
}

// Filter is what the link has to subscribe to for the answers.
func (r *Renewer) Filter() string {
	return topics.TopicOf(r.o.Node, "enroll/+/answer")
}

// Connected says that there is a connection: what failed for lack of one is tried again.
func (r *Renewer) Connected() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Take takes a message on the topic of an answer.
func (r *Renewer) Take(a topics.Address, payload []byte) {
	select {
	case r.answers <- receivedAnswer{a.Device, payload}:
	default: // nobody asked
	}
}

// Run renews until ctx ends.
func (r *Renewer) Run(ctx context.Context) {
	for tries := 0; ; {
		due, life, err := r.due()
		if err != nil {
			r.note(err)
			due, life = r.o.Now(), 90*24*time.Hour
		}
		wait := due.Sub(r.o.Now())
		if tries > 0 {
			wait = renewPause(life, tries)
		}
		// A long wait is taken in pieces: the clock may be set meanwhile.
		if !r.sleep(ctx, min(max(wait, 0), maxSleep), tries > 0) {
			return
		}
		if tries == 0 && wait > maxSleep {
			continue
		}
		err = r.renew(ctx)
		if ctx.Err() != nil {
			return
		}
		r.note(err)
		if err == nil {
			tries = 0
			r.o.Renewed(ctx)
			continue
		}
		tries++
		r.o.Log.Warn().Err(err).Int("attempt", tries).Stringer("retry_in", renewPause(life, tries)).Msg("the certificate could not be renewed")
	}
}

// due is when the certificate is to be renewed, and how long it lives.
func (r *Renewer) due() (at time.Time, life time.Duration, err error) {
	cert, err := r.o.Identity.read()
	if err != nil {
		return at, 0, fmt.Errorf("the certificate can't be read: %w", err)
	}
	from := resource.IssuedAt(cert)
	life = cert.NotAfter.Sub(from)
	// Nodes that joined together don't renew together: the serial number's random half spreads them.
	spread := time.Duration(new(big.Int).Mod(cert.SerialNumber, big.NewInt(max(int64(life/20), 1))).Int64())
	return from.Add(life*2/3 + spread), life, nil
}

// renewPause is how long to wait after so many failures: a small part of a certificate's life, so that there are many more
// attempts before it ends.
func renewPause(life time.Duration, tries int) time.Duration {
	least := min(max(life/200, time.Second), time.Minute)
	most := min(max(life/20, time.Second), time.Hour)
	return backoff.Backoff{Min: least, Max: most}.Wait(tries - 1)
}

// sleep waits, and says whether to go on. A new connection ends the wait after a failure.
func (r *Renewer) sleep(ctx context.Context, d time.Duration, failing bool) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	kick := r.kick
	if !failing {
		kick = nil
	}
	select {
	case <-t.C:
	case <-kick:
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

func (r *Renewer) note(err error) {
	switch {
	case err == nil:
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = r.o.Now()
	}
	r.o.Noted(err, r.since)
}

// renew asks for one certificate, and puts it in its place.
func (r *Renewer) renew(ctx context.Context) error {
	key, text, err := newKey()
	if err != nil {
		return err
	}
	csr, err := certificateRequest(r.o.Node, key)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(resource.JoinRequest{CSR: csr})
	if err != nil {
		return err
	}
	select { // of an attempt that was given up
	case <-r.answers:
	default:
	}
	id := strings.ToLower(rand.Text())
	sent := make(chan error, 1)
	r.o.Publish(topics.Address{Node: r.o.Node, Kind: topics.KindEnroll, Device: id}.String(), payload, func(err error) { sent <- err })
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errors.New("the hub did not answer"))
	defer cancel()
	for {
		select {
		case err := <-sent:
			if err != nil {
				return err
			}
			sent = nil
		case got := <-r.answers:
			if got.request != id {
				continue
			}
			var a resource.JoinAnswer
			if err := json.Unmarshal(got.payload, &a); err != nil {
				return fmt.Errorf("the hub's answer can't be read: %w", err)
			}
			i, err := checkAnswer(a, r.o.Node, key, text)
			if err != nil {
				return err
			}
			if err := i.write(r.o.Identity); err != nil {
				return err
			}
			r.o.Log.Info().Time("expires", i.cert.NotAfter).Msg("the certificate was renewed")
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
