package tree

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

// A screen is drawn every redraw at most, and every tick at least, because ages change.
const (
	RedrawInterval     = 200 * time.Millisecond
	IdleRedrawInterval = time.Second
)

// Watch draws the tree in place, again and again, above the state of a lost connection.
func Watch(ctx context.Context, v *View, changes <-chan Change, out io.Writer, size func() (int, int)) error {
	fmt.Fprint(out, "\x1b[?25l\x1b[2J") // hide the cursor, clear
	defer fmt.Fprint(out, "\x1b[?25h\r\n")
	timer := time.NewTimer(RedrawInterval)
	defer timer.Stop()
	var drawn time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			if c.Err != nil {
				return c.Err
			}
			v.Apply(c)
			timer.Reset(max(0, RedrawInterval-time.Since(drawn)))
		case <-timer.C:
			drawn = time.Now()
			width, height := size()
			fmt.Fprint(out, fitFrame(v.Text(drawn, width), v.Footer(), width, height))
			timer.Reset(IdleRedrawInterval)
		}
	}
}

// fitFrame fits text and footer on a screen, and clears the rest of the last frame.
func fitFrame(text string, footer []string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	room := max(1, height-len(footer)-1)
	if len(lines) > room {
		hidden := len(lines) - room + 1
		lines = append(slices.Clone(lines[:room-1]), fmt.Sprintf("… %d more", hidden))
	}
	for _, line := range footer {
		lines = append(lines, terminal.Shorten(line, width))
	}
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}
