package broker

import (
	"context"
	"log/slog"

	"github.com/rs/zerolog"
)

// slogger hands what the protocol library logs on to zerolog. Its packets are
// left out: they carry payloads and passwords.
type slogger struct{ log zerolog.Logger }

func (s slogger) Enabled(_ context.Context, level slog.Level) bool {
	return s.log.GetLevel() <= zerologLevel(level)
}

func (s slogger) Handle(_ context.Context, r slog.Record) error {
	event := s.log.WithLevel(zerologLevel(r.Level))
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "pk", "packet", "will":
		default:
			event.Interface(a.Key, a.Value.Resolve().Any())
		}
		return true
	})
	event.Msg(r.Message)
	return nil
}

func (s slogger) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := s.log.With()
	for _, a := range attrs {
		c = c.Interface(a.Key, a.Value.Resolve().Any())
	}
	return slogger{c.Logger()}
}

func (s slogger) WithGroup(string) slog.Handler { return s }

// zerologLevel is one step more quiet than the library: what a client does wrong
// is no concern of the operator's.
func zerologLevel(l slog.Level) zerolog.Level {
	switch {
	case l >= slog.LevelError:
		return zerolog.WarnLevel
	case l >= slog.LevelWarn:
		return zerolog.DebugLevel
	}
	return zerolog.TraceLevel
}
