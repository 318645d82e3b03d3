// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// maxCommands is how many commands may wait for one device.
const maxCommands = 16

// command is a command that waits for its device's worker. It is executed at most once, and is not kept when the connection
// ends.
type command struct {
	name  string
	msg   client.Message
	until time.Time // the caller's deadline; zero: none
}

// command takes a command for a device of this mapper.
func (m *mapper) command(a topics.Address, msg client.Message) {
	c := command{name: a.Name, msg: msg}
	if msg.Expiry > 0 {
		c.until = m.o.Now().Add(msg.Expiry)
	}
	m.mu.Lock()
	d := m.devices[a.Device]
	full := d != nil && len(d.commands) >= maxCommands
	if d != nil && !full {
		d.commands = append(d.commands, c)
		d.changed = true
		m.workers[d.bus].wakeUp()
	}
	m.mu.Unlock()
	switch {
	case d == nil:
		m.answer(c, topics.CodeDeviceOffline, nil, fmt.Errorf("%s is not driven by mapper %s any more", a.Device, m.o.Name))
	case full:
		m.answer(c, topics.CodeBusy, nil, fmt.Errorf("%d commands are waiting for %s already", maxCommands, a.Device))
	}
}

// answer responds to a command.
func (m *mapper) answer(c command, code topics.AnswerCode, result []byte, err error) {
	if c.msg.ResponseTopic == "" {
		if err != nil {
			m.log.Warn().Err(err).Str("topic", c.msg.Topic).Msg("command failed; it had no response topic")
		}
		return
	}
	r := client.Message{
		Topic: c.msg.ResponseTopic, Payload: result, QoS: c.msg.QoS, Correlation: c.msg.Correlation,
		User: []client.UserProperty{{Key: topics.PropCode, Value: string(code)}},
	}
	if err != nil {
		r.User = append(r.User, client.UserProperty{Key: topics.PropError, Value: topics.MakeReadable(err.Error())})
	}
	m.mqtt.PublishAsync(r, func(err error) {
		if err != nil {
			m.log.Warn().Err(err).Str("topic", c.msg.Topic).Msg("answer of a command not sent")
		}
	})
}

func (m *mapper) nextCommand(d *device) (c command, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(d.commands) == 0 {
		return c, false
	}
	c = d.commands[0]
	d.commands = d.commands[1:]
	return c, true
}

// execute executes a command, once.
func (w *worker) execute(ctx context.Context, d *device, c command) {
	t, ok := d.session.Session.(Commander)
	w.m.mu.Lock()
	i := slices.IndexFunc(d.methods, func(m resource.DeviceCommand) bool { return m.Name == c.name })
	if i >= 0 {
		t, ok = &deviceMethod{w.m, d, d.methods[i]}, true
	}
	w.m.mu.Unlock()
	switch {
	case !ok:
		w.m.answer(c, topics.CodeRefused, nil, fmt.Errorf("%s takes no commands", d.key))
		return
	case !c.until.IsZero() && !w.m.o.Now().Before(c.until):
		w.m.answer(c, topics.CodeExpired, nil, fmt.Errorf("not executed: %s was busy until the command's deadline", d.key))
		return
	}
	payload := c.msg.Payload
	if p, visited := d.session.device.Command(c.name); visited && i < 0 && len(p.Words) > 0 {
		text, err := p.written(string(payload))
		if err != nil {
			w.m.answer(c, topics.CodeRefused, nil, err)
			return
		}
		payload = []byte(text)
	}
	var result []byte
	err := w.m.drives.add(driveLine{Device: d.key, Command: c.name, Value: string(c.msg.Payload)}, w.m.o.Now())
	if err != nil {
		w.m.answer(c, topics.CodeFailed, nil, fmt.Errorf("drive log: %w", err))
		return
	}
	err = w.request(ctx, d, false, func(ctx context.Context) (err error) {
		result, err = t.Command(ctx, c.name, payload)
		return err
	})
	_, refused := asRefusal(err)
	switch kind := kindOf(err); {
	case err == nil:
		w.m.answer(c, topics.CodeOK, result, nil)
	case refused:
		w.m.answer(c, topics.CodeRefused, nil, err)
	case kind == kindBusy:
		w.m.answer(c, topics.CodeBusy, nil, err)
	case kind == kindNotSent, kind == kindOffline:
		w.m.answer(c, topics.CodeDeviceOffline, nil, err)
	default:
		w.m.answer(c, topics.CodeFailed, nil, err)
	}
	switch kind := kindOf(err); {
	case ctx.Err() != nil:
	case err == nil, refused, kind == kindBusy:
		w.answered(d)
	default:
		w.unanswered(d, err)
	}
}

// deviceMethod is a command of a Device's spec: it writes values to properties, each once and without retry.
type deviceMethod struct {
	m *mapper
	d *device
	resource.DeviceCommand
}

// Command writes the values of the payload, in the order of names. Values that were written before a refused one stay, and the
// answer says so.
func (x *deviceMethod) Command(ctx context.Context, _ string, payload []byte) ([]byte, error) {
	if !x.d.session.CanWrite() {
		return nil, Refuse(ReadOnly, "%s can't be written", x.d.key)
	}
	values, err := x.values(payload)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(values))
	for i, name := range names {
		err := x.d.session.Write(ctx, name, values[name])
		if r, refused := asRefusal(err); refused && i > 0 {
			return nil, Refuse(r.Code, "%s: %s (set before that: %s)", name, r.Message, strings.Join(names[:i], ", "))
		}
		if err != nil && !errors.Is(err, ErrUnconfirmed) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil, nil
}

// values returns the values of a payload if all of them are allowed.
func (x *deviceMethod) values(payload []byte) (map[string]string, error) {
	values := make(map[string]string)
	members, err := resource.ParseMembers(payload)
	bare := len(x.Properties) == 1 && members[x.Properties[0]] == nil
	switch {
	case bare:
		values[x.Properties[0]] = string(payload)
	case err != nil || len(members) == 0:
		return nil, Refuse(Invalid, "the payload of %s must be a JSON object of values for %s", x.Name, strings.Join(x.Properties, ", "))
	default:
		for name, v := range members {
			if v == nil || !slices.Contains(x.Properties, name) {
				return nil, Refuse(Invalid, "%.80s: %s sets %s", name, x.Name, strings.Join(x.Properties, ", "))
			}
			values[name] = string(*v)
		}
	}
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	for name, value := range values {
		p := x.d.props[name]
		if p == nil || !p.spec.Writable() {
			return nil, Refuse(ReadOnly, "%s can't be set", name)
		}
		if r := checkValue(p.spec, value); r != nil {
			return nil, r
		}
	}
	return values, nil
}

var errStopping = errors.New("its mapper is stopping")

// failCommands answers all waiting commands of a device that is offline: commands are not kept until it is back.
func (m *mapper) failCommands(d *device, err error) {
	for c, ok := m.nextCommand(d); ok; c, ok = m.nextCommand(d) {
		m.answer(c, topics.CodeDeviceOffline, nil, fmt.Errorf("%s is offline: %w", d.key, err))
	}
}
