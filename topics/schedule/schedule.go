// SPDX-License-Identifier: Apache-2.0

// Package schedule says when windows of time are open, in which nodes may be updated: for the hub, and for a node's agent.
//
// A window opens at the times of a cron expression. The package never reads a clock.
package schedule

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a host may have no time zones

	"github.com/robfig/cron/v3"

	"github.com/edgebus/edgebus/topics/resource"
)

// Local is the time zone of a node itself.
const Local = "Local"

// defaultOpen is how long a window is open that doesn't say so.
const defaultOpen = time.Hour

// Window is a time that comes again and again.
type Window struct {
	opens cron.Schedule
	open  time.Duration
	zone  *time.Location
	// hourly says that it opens in every hour that passes. Otherwise it opens once for each time that a clock on the wall is to show: also
	// in an hour that summer time skips, at its end, or has twice.
	hourly bool
}

var cronParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Parse reads a schedule. local is the node's own time zone; empty: UTC.
func Parse(s resource.UpdateSchedule, local string) (w Window, err error) {
	if n := len(s.At); n > resource.MaxCron {
		return w, fmt.Errorf("the cron expression has %d characters, more than %d", n, resource.MaxCron)
	}
	if strings.Contains(s.At, "=") || strings.HasPrefix(s.At, "@every") { // the library's own time zones, and times that begin with the hub
		return w, fmt.Errorf("%q is no cron expression: minute, hour, day of the month, month, day of the week", s.At)
	}
	if w.opens, err = cronParser.Parse(s.At); err != nil {
		return w, fmt.Errorf("%q is no cron expression: %w", s.At, err)
	}
	fields := strings.Fields(s.At)
	w.hourly = s.At == "@hourly" || len(fields) == 5 && (fields[1] == "*" || fields[1] == "?")
	zone := cmp.Or(s.TimeZone, Local)
	if zone == Local {
		zone = cmp.Or(local, "UTC")
	}
	if w.zone, err = time.LoadLocation(zone); err != nil {
		return w, fmt.Errorf("%q is no time zone, such as Europe/Berlin: %w", zone, err)
	}
	w.open = defaultOpen
	if s.StartGraceDuration != "" {
		if w.open, err = time.ParseDuration(s.StartGraceDuration); err != nil || w.open < time.Minute {
			return w, fmt.Errorf("%q is no duration of at least 1m", s.StartGraceDuration)
		}
	}
	if w.opens.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, w.zone)).IsZero() {
		return w, fmt.Errorf("%q never comes", s.At)
	}
	return w, nil
}

// Open is the next time at which the window is open: now if it is, the zero time if it never is again.
func (w Window) Open(now time.Time) time.Time {
	opened := w.next(now.Add(-w.open).In(w.zone))
	if opened.IsZero() || opened.After(now) {
		return opened
	}
	return now
}

// next is when it opens after a time.
func (w Window) next(after time.Time) time.Time {
	if w.hourly {
		return w.opens.Next(after)
	}
	for shown := wallClock(after); ; {
		shown = w.opens.Next(shown)
		if shown.IsZero() {
			return shown
		}
		if at := w.firstShown(shown); at.After(after) {
			return at
		}
	}
}

// wallClock is what a clock on the wall shows, as if it was in UTC, where each time comes once.
func wallClock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// firstShown is when a clock on the wall shows a time for the first time, or is put forward over it.
func (w Window) firstShown(shown time.Time) time.Time {
	at := time.Date(shown.Year(), shown.Month(), shown.Day(), shown.Hour(), shown.Minute(), shown.Second(), 0, w.zone)
	began, ends := at.ZoneBounds()
	switch now := wallClock(at); {
	case now.After(shown):
		return began
	case now.Before(shown):
		return ends
	case began.IsZero():
		return at
	}
	_, offset := began.Add(-time.Second).Zone()
	if before := time.Unix(shown.Unix()-int64(offset), 0).In(w.zone); before.Before(began) {
		return before
	}
	return at
}

// maxOpenings bounds how many openings are looked at for one at which several windows are open.
const maxOpenings = 2000

// AllOpen is the next time at which all windows are open; the zero time: none was found.
func AllOpen(now time.Time, windows []Window) time.Time {
	at := now
	for range maxOpenings {
		before := at
		for _, w := range windows {
			if at = w.Open(at); at.IsZero() {
				return at
			}
		}
		if at.Equal(before) {
			return at
		}
	}
	return time.Time{}
}
