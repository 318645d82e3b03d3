// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/edgebus/edgebus/mappers/bacnet/wire"
)

// Push implements mappers.Pusher: it subscribes to the objects of all present values, renews at half of the subscriptions' life, and at once
// when the device says that it has started. A device that takes no subscriptions is read, as its cycles say.
func (s *session) Push(ctx context.Context, emit func(property, value string)) error {
	fields := map[wire.ObjectID][]*field{}
	for _, f := range s.config.fields {
		if f.ref.Property == wire.PresentValue && f.ref.Index == wire.NoIndex {
			fields[f.ref.Object] = append(fields[f.ref.Object], f)
		}
	}
	if s.config.lifetime == 0 || len(fields) == 0 {
		<-ctx.Done()
		return nil
	}
	started := make(chan struct{}, 1)
	defer s.client.Announcements(func(i wire.IAm) {
		s.mu.Lock()
		own := s.address != nil && *s.address == i.Address
		s.mu.Unlock()
		if own {
			select {
			case started <- struct{}{}:
			default:
			}
		}
	})()
	for {
		wait := s.config.lifetime / 2
		if err := s.subscribeAll(ctx, fields, emit); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		case <-started:
		}
	}
}

// subscribeAll subscribes to each object. The error is that the device doesn't answer, whatever it is asked.
func (s *session) subscribeAll(ctx context.Context, fields map[wire.ObjectID][]*field, emit func(property, value string)) error {
	to, err := s.where(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.stopListening != nil && s.listensTo != to {
		s.stopListening()
		s.stopListening = nil
	}
	if s.stopListening == nil {
		s.process, s.stopListening = s.client.Listen(to, func(n wire.Notification) {
			for _, f := range fields[n.Object] {
				if r := f.reading(n.Values); r.Err == nil {
					emit(f.name, r.Value)
				} // else the next reading says why
			}
		})
		s.listensTo = to
	}
	process := s.process
	s.mu.Unlock()
	problem := ""
	for id := range fields {
		err := s.client.Subscribe(ctx, to, process, id, s.config.lifetime)
		var reject wire.Reject
		var refused wire.Error
		var abort wire.Abort
		switch {
		case errors.As(err, &reject):
			s.device.Tell("Subscriptions", "doesn't take subscriptions, and is read instead: set cov to false")
			<-ctx.Done()
			return nil
		case errors.As(err, &refused), errors.As(err, &abort):
			problem = fmt.Sprintf("refuses subscriptions to %s, which is read instead: %v", id, err)
		case errors.Is(err, wire.ErrNoAnswer) && s.Ping(ctx) == nil: // it may be deaf to the service, and is asked again at half of the life
			s.device.Tell("Subscriptions", "doesn't answer subscriptions, and is read instead: set cov to false")
			return nil
		case err != nil:
			return err
		}
	}
	s.device.Tell("Subscriptions", problem)
	return nil
}
