package mappers

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// fail takes a device out of service until its next attempt.
func (w *worker) fail(ctx context.Context, d *device, err error) (time.Time, bool) {
	if ctx.Err() != nil { // we are being stopped: that says nothing about the device
		return time.Time{}, false
	}
	w.close(d)
	wait := min(w.m.o.Backoff.Max, w.m.o.Backoff.Min<<min(d.failures, 16))
	d.failures++
	d.why = err
	d.retryAt = w.m.o.Now().Add(wait)
	var bad *ConfigError
	d.hopeless = errors.As(err, &bad)
	if d.online || d.failures == 1 {
		w.m.log.Warn().Err(err).Str("device", d.key).Stringer("retry_in", wait.Round(time.Millisecond)).Bool("until_reconfigured", d.hopeless).Msg("device offline")
	}
	w.complain(d, err)
	w.setOnline(d, false)
	w.failCommands(d, err)
	return d.retryAt, !d.hopeless
}

func (w *worker) setOnline(d *device, online bool) {
	if d.online == online && d.failures != 1 {
		return
	}
	if online && !d.online {
		w.m.log.Info().Str("device", d.key).Msg("device online")
	}
	d.online = online
	if online {
		w.m.out.remove(w.topic(d, topics.KindProblem, "")) // the core ends it with the state
		d.problem = ""
	}
	state := resource.Offline
	if online {
		state = resource.Online
	}
	w.say(d, topics.KindDeviceState, "", state, nil)
}

// complain says why a device is not online, before that it isn't.
func (w *worker) complain(d *device, err error) {
	p := resource.Problem{Code: resource.Unreachable, Message: plain(err)}
	if d.hopeless {
		p.Code = resource.BadConfig
	}
	payload, failed := json.Marshal(p)
	if failed != nil || d.problem == string(payload) {
		return
	}
	d.problem = string(payload)
	w.say(d, topics.KindProblem, "", d.problem, nil)
}

// plain is an error's text without what is another with every attempt: then it would be news each time.
func plain(err error) string {
	const most = 500
	text := err.Error()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		text = strings.TrimSuffix(strings.TrimSuffix(text, "EOF"), "unexpected ") + "the device closed the connection"
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Source != nil {
		text = strings.ReplaceAll(text, op.Source.String()+"->", "")
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
