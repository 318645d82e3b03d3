package httpserver

import (
	stdlog "log"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// complaints is where net/http says what is wrong with connections. Anybody can cause any number of them, so not all
// of a flood are logged.
func complaints(log zerolog.Logger) *stdlog.Logger {
	return stdlog.New(complaint{log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})}, "", 0)
}

type complaint struct{ log zerolog.Logger }

// Write logs one of them. A failed handshake is the client's affair, as it is with MQTT.
func (c complaint) Write(text []byte) (int, error) {
	what := strings.TrimPrefix(strings.TrimSpace(string(text)), "http: ")
	level := zerolog.WarnLevel
	if strings.HasPrefix(what, "TLS handshake error") {
		level = zerolog.InfoLevel
	}
	c.log.WithLevel(level).Msg(what)
	return len(text), nil
}
