// SPDX-License-Identifier: Apache-2.0

package subprocess

import (
	"slices"
	"strings"
	"sync"
)

// tailSize is how much is kept, in bytes.
const tailSize = 2 << 10

// Tail keeps the end of what is written to it, for an error or a status, however much that is.
type Tail struct {
	mu   sync.Mutex
	text []byte
	cut  bool
}

func (w *Tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	if more := len(w.text) - tailSize; more > 0 {
		w.text, w.cut = slices.Delete(w.text, 0, more), true
	}
	return len(p), nil
}

// append puts the end of another output last: that of stderr says why a program failed, however much it wrote to stdout at the same
// time.
func (w *Tail) append(other *Tail) {
	other.mu.Lock()
	defer other.mu.Unlock()
	if len(other.text) == 0 {
		return
	}
	w.mu.Lock()
	if n := len(w.text); n > 0 && w.text[n-1] != '\n' {
		w.text = append(w.text, '\n')
	}
	w.mu.Unlock()
	_, _ = w.Write(other.text)
}

// String is the end of the output behind a colon; nothing if there was none.
func (w *Tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.ToValidUTF8(string(w.text), "�")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if lines[0] == "" {
		return ""
	}
	if more := len(lines) - 10; more > 0 {
		lines, w.cut = lines[more:], true
	}
	if w.cut {
		lines[0] = "…" + lines[0]
	}
	return ": " + strings.Join(lines, "\n")
}
