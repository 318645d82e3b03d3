// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/resource"
)

func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		s          resource.UpdateSchedule
		local      string
		now, opens string
	}{
		"it opens tonight":          {resource.UpdateSchedule{At: "0 2 * * *"}, "", "2026-11-22T10:00:00Z", "2026-11-23T02:00:00Z"},
		"it is open":                {resource.UpdateSchedule{At: "0 2 * * *"}, "", "2026-11-22T02:59:59Z", "2026-11-22T02:59:59Z"},
		"it opens now":              {resource.UpdateSchedule{At: "0 2 * * *"}, "", "2026-11-22T02:00:00Z", "2026-11-22T02:00:00Z"},
		"it has closed":             {resource.UpdateSchedule{At: "0 2 * * *"}, "", "2026-11-22T03:00:00Z", "2026-11-23T02:00:00Z"},
		"it is open longer":         {resource.UpdateSchedule{At: "0 2 * * *", StartGraceDuration: "3h"}, "", "2026-11-22T04:00:00Z", "2026-11-22T04:00:00Z"},
		"on Sundays":                {resource.UpdateSchedule{At: "30 1 * * 0"}, "", "2026-11-23T00:00:00Z", "2026-11-29T01:30:00Z"},
		"the node's zone":           {resource.UpdateSchedule{At: "0 2 * * *", TimeZone: "Local"}, "America/New_York", "2026-11-22T06:30:00Z", "2026-11-22T07:00:00Z"},
		"its own zone":              {resource.UpdateSchedule{At: "0 2 * * *", TimeZone: "Asia/Tokyo"}, "America/New_York", "2026-11-22T06:30:00Z", "2026-11-22T17:00:00Z"},
		"an hour that comes twice":  {resource.UpdateSchedule{At: "30 2 * * *"}, "Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T00:30:00Z"},
		"it was open before":        {resource.UpdateSchedule{At: "30 2 * * *", StartGraceDuration: "30m"}, "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z"},
		"an hour that doesn't come": {resource.UpdateSchedule{At: "30 2 * * *"}, "Europe/Berlin", "2026-03-28T22:00:00Z", "2026-03-29T01:00:00Z"},
		"half an hour less":         {resource.UpdateSchedule{At: "15 2 * * *"}, "Australia/Lord_Howe", "2026-10-03T12:00:00Z", "2026-10-03T15:30:00Z"},
		"a midnight that is not":    {resource.UpdateSchedule{At: "@daily"}, "America/Santiago", "2026-09-05T12:00:00Z", "2026-09-06T04:00:00Z"},
		"a descriptor":              {resource.UpdateSchedule{At: "@daily"}, "", "2026-11-22T10:00:00Z", "2026-11-23T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := Parse(c.s, c.local)
			require.NoError(t, err)
			require.Equal(t, parseTime(c.opens), w.Open(parseTime(c.now)).UTC())
		})
	}
	all := func(from, to int) (list string) {
		for n := from; n <= to; n++ {
			list += "," + strconv.Itoa(n)
		}
		return list[1:]
	}
	_, err := Parse(resource.UpdateSchedule{At: all(0, 59) + " " + all(0, 23) + " " + all(1, 31) + " " + all(1, 12) + " " + all(0, 6)}, "")
	require.NoError(t, err, "a long expression")
	for text, why := range map[string]string{
		"":     "no cron expression",
		"TZ=0": "no cron expression", // the library panics
		"0 2 29 2 " + strings.Repeat("*,", 500) + "*": "1010 characters, more than 1000",
		"0-18446744073709551615 * * * *":              "no cron expression",
		"* * *":                                       "no cron expression",
		"61 * * * *":                                  "no cron expression",
		"CRON_TZ=UTC 0 2 * *":                         "no cron expression",
		"@every 5m":                                   "no cron expression",
		"0 0 30 2 *":                                  "never comes",
	} {
		_, err := Parse(resource.UpdateSchedule{At: text}, "")
		require.ErrorContains(t, err, why, text)
	}
	_, err = Parse(resource.UpdateSchedule{At: "0 2 * * *", TimeZone: "Mars/Olympus"}, "")
	require.ErrorContains(t, err, "no time zone")
}

func TestAllOpen(t *testing.T) {
	parse := func(at, open string) Window {
		w, err := Parse(resource.UpdateSchedule{At: at, StartGraceDuration: open}, "")
		require.NoError(t, err)
		return w
	}
	now := parseTime("2026-11-22T10:00:00Z")
	require.Equal(t, now, AllOpen(now, nil))
	require.Equal(t, parseTime("2026-11-29T03:00:00Z"), AllOpen(parseTime("2026-11-22T10:00:00Z"), []Window{parse("0 2 * * *", "2h"), parse("0 3 * * 0", "1h")}).UTC())
	require.Zero(t, AllOpen(now, []Window{parse("0 2 * * *", "1h"), parse("0 4 * * *", "1h")}))
}

// The window is open at the time that is found, and at no full minute before.
func TestOpenIsTheFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minute, hour, open := rapid.IntRange(0, 59).Draw(t, "minute"), rapid.IntRange(0, 23).Draw(t, "hour"), rapid.IntRange(1, 200).Draw(t, "open")
		w := Window{open: time.Duration(open) * time.Minute, zone: time.UTC}
		var err error
		if w.opens, err = cronParser.Parse(time.Date(2026, 1, 1, hour, minute, 0, 0, time.UTC).Format("4 15") + " * * *"); err != nil {
			t.Fatal(err)
		}
		is := func(at time.Time) bool { // by its definition
			day := time.Date(at.Year(), at.Month(), at.Day(), hour, minute, 0, 0, time.UTC)
			for _, opened := range []time.Time{day, day.AddDate(0, 0, -1)} {
				if !at.Before(opened) && at.Before(opened.Add(w.open)) {
					return true
				}
			}
			return false
		}
		now := time.Date(2026, 5, 1, 0, rapid.IntRange(0, 3000).Draw(t, "now"), 0, 0, time.UTC)
		found := w.Open(now)
		if !is(found) {
			t.Fatalf("it is closed at %s", found)
		}
		for at := now; at.Before(found); at = at.Add(time.Minute) {
			if is(at) {
				t.Fatalf("it is open at %s, and %s was found", at, found)
			}
		}
	})
}

// Whatever the day, a window of one time opens once, and one of every hour as often as hours pass.
func TestAWindowOpensOnceADay(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"} {
		location, err := time.LoadLocation(zone)
		require.NoError(t, err)
		for hour := range 4 {
			w, err := Parse(resource.UpdateSchedule{At: "20 " + strconv.Itoa(hour) + " * * *"}, zone)
			require.NoError(t, err)
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, location)
			for day := 1; day <= 365; day++ {
				at = w.next(at)
				require.Equal(t, day, at.YearDay(), "%s of %s", at, zone)
			}
		}
		w, err := Parse(resource.UpdateSchedule{At: "0 * * * *"}, zone)
		require.NoError(t, err)
		for at := time.Date(2026, 1, 1, 0, 0, 0, 0, location); at.Year() == 2026; {
			next := w.next(at)
			require.LessOrEqual(t, next.Sub(at), 90*time.Minute, "%s of %s", at, zone)
			at = next
		}
	}
}

// What can't be parsed is refused when it is written, and nothing else is.
func TestSchedulesAreRefusedByField(t *testing.T) {
	validate := func(s resource.UpdateSchedule) error {
		n := resource.Node{Metadata: resource.Meta{Name: "n"}}
		n.Spec.UpdatePolicy = &resource.UpdatePolicy{UpdateSchedule: &s}
		return n.Validate()
	}
	for text, why := range map[string]string{
		"61 * * * *": `the minute "61" must be from 0 to 59`, "0 24 * * *": `the hour "24" must`, "0 0 0 * *": `the day of the month "0" must`, "0 0 30 2 *": "never comes", "0 0 31 4,6 *": "never comes",
		"0 0 * 13 *": `the month "13" must`, "0 0 * * 7": `the day of the week "7" must`, "0 0 * * mo": `the day of the week "mo" must`, "5-1 * * * *": `the minute "5-1" must`, "*/0 * * * *": `the minute "*/0" must`,
		"0 0 * *": "five fields", "@never": "one of the names", "@every 5m": "one of the names",
	} {
		require.ErrorContains(t, validate(resource.UpdateSchedule{At: text}), "spec.updatePolicy.updateSchedule.at: ", text)
		require.ErrorContains(t, validate(resource.UpdateSchedule{At: text}), why, text)
	}
	require.ErrorContains(t, validate(resource.UpdateSchedule{At: "0 2 * * *", TimeZone: "Europe/Nowhere"}), "spec.updatePolicy.updateSchedule.timeZone: ")
	rapid.Check(t, func(t *rapid.T) {
		item := rapid.SampledFrom([]string{"*", "?", "0", "1", "5", "7", "12", "23", "29", "30", "31", "59", "60", "1-5", "5-1", "*/2", "*/0", "3/2", "1-9/3", "mon", "FEB", "1,2", "2,30", "-1", "x", "", "1-", "/2", "1,*", "*/1"})
		var fields []string
		for range 5 {
			fields = append(fields, item.Draw(t, "field"))
		}
		text := strings.Join(fields, " ")
		_, err := Parse(resource.UpdateSchedule{At: text}, "")
		if refused := validate(resource.UpdateSchedule{At: text}); (err != nil) != (refused != nil) {
			t.Fatalf("%q: %v, and it is refused with %v", text, err, refused)
		}
	})
}
