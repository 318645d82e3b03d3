package printer

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
)

// FirstNames are the first few of a list.
func FirstNames(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Warn prints a warning of the hub as kubectl does.
func Warn(w io.Writer, text string) { fmt.Fprintln(w, "Warning:", terminal.Printable(text, 500)) }

// Label is an object's name in output: device/lamp.
func Label(k client.Kind, name string) string { return cmp.Or(k.Singular, k.Plural) + "/" + name }

// Plural is a number with its noun: 2 objects.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Age is a time span in its largest unit: 5s, 3m.
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
