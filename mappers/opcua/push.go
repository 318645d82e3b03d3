// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"

	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// Push implements mappers.Pusher: it subscribes to all properties, and ends when the subscription or the connection does; it is called again
// then. What the server refuses is read, as its cycle says.
func (s *session) Push(ctx context.Context, emit func(property, value string)) error {
	if s.config.publish == 0 || len(s.config.order) == 0 {
		<-ctx.Done()
		return nil
	}
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	var fields []*field
	var items []wire.MonitoredItem
	for _, f := range s.config.order {
		if node, ok := c.nodes[f]; ok {
			fields = append(fields, f)
			items = append(items, wire.MonitoredItem{Node: node, Range: f.index, Sampling: f.sampling})
		}
	}
	err = c.Subscribe(ctx, s.config.publish, items, func(int, error) {}, func(change wire.Change) {
		f := fields[change.Item]
		opening, cancel := s.within(ctx)
		defer cancel()
		if change.Value.Value, err = c.types.open(opening, change.Value.Value); err != nil {
			return
		}
		s.learnKind(f, change.Value.Value)
		if r := f.reading(change.Value); r.Err == nil {
			emit(f.name, r.Value)
		} // else the next reading says why
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
