package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// colours are ANSI's, for terminals whose owner wants them; else nothing is coloured.
type colours bool

func coloursOn(out io.Writer) colours {
	_, screen := terminal(out)
	return colours(screen && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
	strong = "1"
)

func (on colours) paint(code, text string) string {
	if !on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// word colours what stands for how something is.
func (on colours) word(cell, text string) string {
	switch cell {
	case "online":
		return on.paint(green, text)
	case "offline":
		return on.paint(red, text)
	case "unknown", "no", "False":
		return on.paint(yellow, text)
	}
	return text
}

func (on colours) sign(m mark) string {
	return on.paint(map[mark]string{fine: green, look: yellow, wrong: red}[m], m.sign())
}

// progress says on a terminal what is waited for, and for how long, until it is stopped; elsewhere nothing.
func progress(errs io.Writer, limit time.Duration, what func() string) (stop func()) {
	if _, screen := terminal(errs); !screen {
		return func() {}
	}
	began, done := time.Now(), make(chan struct{})
	show := func() {
		text := fmt.Sprintf("waiting for %s: %s of %s", what(), time.Since(began).Round(time.Second), limit)
		fmt.Fprint(errs, "\r\x1b[K"+coloursOn(errs).paint(faint, printable(text, 78)))
	}
	var shown sync.WaitGroup
	shown.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for show(); ; show() {
			select {
			case <-done:
				fmt.Fprint(errs, "\r\x1b[K")
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		close(done)
		shown.Wait()
	}
}
