package configs

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"
)

// logTime is how log lines are stamped.
const logTime = "2006-01-02T15:04:05.000Z07:00"

// Logger writes to w as cfg says: by default for people if w is a terminal, and one
// JSON object a line otherwise.
func Logger(w io.Writer, cfg Log) zerolog.Logger {
	file, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd()))
	if cfg.Format == "pretty" || (cfg.Format != "json" && terminal) {
		plain := !terminal || os.Getenv("NO_COLOR") != ""
		w = zerolog.ConsoleWriter{Out: w, NoColor: plain, TimeFormat: "15:04:05.000"}
	}
	level, err := zerolog.ParseLevel(cfg.Level)
	if cfg.Level == "off" {
		level, err = zerolog.Disabled, nil
	}
	if err != nil || cfg.Level == "" {
		level = zerolog.InfoLevel
	}
	return zerolog.New(w).Level(level).Hook(stamp{})
}

// stamp adds the time, in milliseconds: zerolog's own stamp has its precision in a
// global variable, which is not ours to change.
type stamp struct{}

func (stamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().Format(logTime))
}
