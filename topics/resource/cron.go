// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// cronField is a field of a cron expression.
type cronField struct {
	name     string
	min, max int
	names    []string // of the values from min on
}

var cronFields = []cronField{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of the month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of the week", 0, 6, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

var cronNames = []string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}

// daysOf are the most days that each month has.
var daysOf = []int{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// cronProblem is why a text is no cron expression, or one that never comes; empty: it is one. The times themselves are computed by
// topics/schedule.
func cronProblem(text string) string {
	if strings.HasPrefix(text, "@") {
		if !slices.Contains(cronNames, text) {
			return "must be one of the names " + strings.Join(cronNames, ", ") + ", or a cron expression"
		}
		return ""
	}
	fields := strings.Fields(text)
	if len(fields) != len(cronFields) {
		return "must be a cron expression of five fields, such as 0 2 * * *"
	}
	values := make([][]int, len(fields))
	for i, f := range cronFields {
		var why string
		if values[i], why = f.parse(fields[i]); why != "" {
			return fmt.Sprintf("the %s %s", f.name, why)
		}
	}
	anyDay := func(field string) bool {
		return slices.ContainsFunc(strings.Split(field, ","), func(item string) bool { return slices.Contains([]string{"*", "?", "*/1", "?/1"}, item) })
	}
	if anyDay(fields[2]) || !anyDay(fields[4]) { // either day is enough if both are given
		return ""
	}
	for _, month := range values[3] {
		if slices.Min(values[2]) <= daysOf[month-1] {
			return ""
		}
	}
	return "never comes: no such month has such a day"
}

// parse reads a list of values, ranges and steps.
func (f cronField) parse(text string) (values []int, why string) {
	for item := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(item, "/")
		low, high, ranged := strings.Cut(span, "-")
		from, to, ok := f.min, f.max, true
		if low != "*" && low != "?" || ranged {
			from, ok = f.value(low)
			switch {
			case ranged && ok:
				to, ok = f.value(high)
			case !stepped:
				to = from
			}
		}
		by := 1
		if stepped && ok {
			n, err := strconv.Atoi(step)
			by, ok = n, err == nil && n > 0 && step[0] != '+'
		}
		if !ok || from < f.min || to > f.max || from > to {
			return nil, fmt.Sprintf("%s must be from %d to %d, such as *, %d, %d-%d or */2", clipText(item), f.min, f.max, f.min, f.min, f.max)
		}
		for v := from; v <= to; v += by {
			values = append(values, v)
		}
	}
	return values, ""
}

func (f cronField) value(text string) (int, bool) {
	if i := slices.Index(f.names, strings.ToLower(text)); i >= 0 {
		return f.min + i, true
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && text[0] != '+' && text[0] != '-'
}
