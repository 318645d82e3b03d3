// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
)

// ReadPassword reads a password: from a terminal twice, without echo.
func ReadPassword(in io.Reader, prompts io.Writer) (secret []byte, err error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		secret = []byte(strings.TrimRight(line, "\r\n"))
	} else {
		var twice [2][]byte
		for i, prompt := range []string{"Password: ", "Once more: "} {
			fmt.Fprint(prompts, prompt)
			twice[i], err = term.ReadPassword(int(file.Fd()))
			fmt.Fprintln(prompts)
			if err != nil {
				return nil, err
			}
		}
		if string(twice[0]) != string(twice[1]) {
			return nil, exitcode.Errorf(exitcode.Misused, "the two passwords are not the same")
		}
		secret = twice[0]
	}
	if len(secret) == 0 {
		return nil, exitcode.Errorf(exitcode.Misused, "no password was given: type one, or write it to standard input")
	}
	return secret, nil
}

// Colours is whether output is coloured: on a terminal, without NO_COLOR.
type Colours bool

// ColoursOf is whether an output is coloured.
func ColoursOf(out io.Writer) Colours {
	_, screen := Size(out)
	return Colours(screen && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

// What a text is painted with.
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Faint  = "2"
	Bold   = "1"
)

// Paint paints a text if the output is coloured.
func (on Colours) Paint(code, text string) string {
	if !on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// PaintState colours states.
func (on Colours) PaintState(cell, text string) string {
	switch cell {
	case "online":
		return on.Paint(Green, text)
	case "offline":
		return on.Paint(Red, text)
	case "unknown", "no", "False":
		return on.Paint(Yellow, text)
	}
	return text
}

// ShowProgress shows on a terminal what is waited for, and for how long, until stop is called; elsewhere nothing.
func ShowProgress(errs io.Writer, limit time.Duration, what func() string) (stop func()) {
	if _, screen := Size(errs); !screen {
		return func() {}
	}
	began, done := time.Now(), make(chan struct{})
	show := func() {
		text := fmt.Sprintf("waiting for %s: %s of %s", what(), time.Since(began).Round(time.Second), limit)
		fmt.Fprint(errs, "\r\x1b[K"+ColoursOf(errs).Paint(Faint, Printable(text, 78)))
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

// Size is whether out is a terminal, and a function that returns its size.
func Size(out any) (size func() (width, height int), ok bool) {
	file, isFile := out.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return nil, false
	}
	return func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width < 1 || height < 1 {
			return 80, 24
		}
		return width, height
	}, true
}

// Printable makes one line of a text, without control characters for a terminal and of bounded length.
func Printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
	return Shorten(s, most)
}

// Shorten cuts a text to a number of characters.
func Shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// Pad fills a text up with spaces.
func Pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
